//! The conformance suite of all providers: one list of cases, run over one table of providers.
//!
//! It covers the contract in `weft_rdma::verbs`, and RFC 5040 5.5 (order) and 7.2 (checks). A new provider is one line
//! in the table at the end of this file.

mod ends;
mod memory;
mod messages;
mod net;
mod setup;
mod vanish;
mod wrapped;

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use net::Net;
use weft_machine::Pool;
use weft_rdma::wrap::Wrapped;
use weft_rdma::wrap::fault::{Fault, Faults};
use weft_rdma::wrap::pcap::{Capture, Pcap};
use weft_rdma::wrap::trace::Trace;
use weft_rdma::{Provider, iwarp, rnic, shm};

/// How to make a provider, what it may cost, and what differs by medium.
struct Kind {
    name: &'static str,
    make: fn(Pool) -> Rc<dyn Provider>,
    /// For the connecting side; mostly the same.
    make_client: fn(Pool) -> Rc<dyn Provider>,
    /// Payload copies by our own code per received byte.
    copies_per_received_byte: u64,
    /// The medium's properties here, or why it cannot be tested here.
    medium: fn() -> Result<Medium, String>,
}

/// What differs between media. Everything else is the same for all.
#[derive(Clone, Copy, Debug)]
struct Medium {
    /// The address of its listeners.
    ip: IpAddr,
    /// The longest private data that arrives.
    private_data: usize,
    /// The shortest that the connecting side refuses to send.
    private_data_refused: usize,
    /// Whether private data arrives with zeros appended (InfiniBand's messages have a fixed length).
    private_data_padded: bool,
    /// Whether the accepting side serves no more Reads at a time than it announces; siw serves as many as the peer asks
    /// for.
    keeps_ird: bool,
    /// Whether both sides learn exactly why an access was refused. Devices report less: see `End::refused`.
    refusals_named: bool,
    /// Whether a Read of a region that may only be written is refused; Linux's siw serves it.
    refuses_wrong_reads: bool,
    /// Whether the accepting side checks STag and offset of an empty Read, against RFC 5040 5.2.1; Linux's siw does.
    checks_empty_reads: bool,
    /// Whether the peer's writes and reads here are counted.
    counts_peer: bool,
    /// Whether a receiver learns that the message was sent with Solicited Event.
    tells_solicited: bool,
    /// Longer than any case takes; a case that hangs exceeds it and fails.
    case_limit: Duration,
}

/// Our own software, which fulfils every part of the contract.
fn software() -> Result<Medium, String> {
    Ok(Medium {
        ip: Ipv4Addr::LOCALHOST.into(),
        private_data: 508,
        private_data_refused: 509,
        keeps_ird: true,
        private_data_padded: false,
        refusals_named: true,
        refuses_wrong_reads: true,
        checks_empty_reads: false,
        counts_peer: true,
        tells_solicited: true,
        case_limit: Duration::from_secs(60),
    })
}

fn is_siw(device: &rnic::Device) -> bool {
    device.details.as_ref().is_ok_and(|details| details.vendor == (0x0062_6d74, 1))
}

/// A device connects to our iWARP.
fn device_to_iwarp() -> Result<Medium, String> {
    Ok(Medium {
        refuses_wrong_reads: true,
        checks_empty_reads: false,
        counts_peer: true,
        tells_solicited: true,
        ..iwarp_device()?
    })
}

/// Our iWARP connects to a device.
fn iwarp_to_device() -> Result<Medium, String> {
    let keeps_ird = !rnic::devices().is_ok_and(|devices| devices.iter().any(is_siw));
    Ok(Medium { private_data_refused: 509, keeps_ird, ..iwarp_device()? })
}

fn iwarp_device() -> Result<Medium, String> {
    let medium = device()?;
    if medium.private_data_padded { Err("needs an iWARP device, and no other".into()) } else { Ok(medium) }
}

/// An RDMA device, at the address given in the environment: a device has no loopback address.
fn device() -> Result<Medium, String> {
    let devices = rnic::devices().map_err(|e| e.to_string())?;
    let ip = std::env::var("WEFT_TEST_RNIC").map_err(|_| {
        "there is an RDMA device: set WEFT_TEST_RNIC to the IP address of its port".to_owned()
    })?;
    let iwarp = devices.iter().all(|device| device.transport == rnic::Transport::Iwarp);
    let private_data = if iwarp { 251 } else { 56 };
    Ok(Medium {
        ip: ip.parse().expect("WEFT_TEST_RNIC is an IP address"),
        private_data,
        private_data_refused: private_data + 1,
        keeps_ird: true,
        private_data_padded: !iwarp,
        refusals_named: false,
        refuses_wrong_reads: !devices.iter().any(is_siw),
        checks_empty_reads: devices.iter().any(is_siw),
        counts_peer: false,
        tells_solicited: false,
        // Emulated machines are slow.
        case_limit: Duration::from_secs(300),
    })
}

macro_rules! conformance {
    ($name:ident, $make:expr, $client:expr, copies $copies:literal, $medium:ident) => {
        mod $name {
            use super::*;

            pub const KIND: Kind = Kind {
                name: stringify!($name),
                make: $make,
                make_client: $client,
                copies_per_received_byte: $copies,
                medium: $medium,
            };

            conformance!(cases messages {
                sends_arrive_in_order_with_their_sizes
                both_sides_send_at_once
                a_message_may_fill_its_buffer
                a_message_longer_than_its_buffer_is_refused
                a_message_without_a_buffer_is_refused
                unsignalled_sends_say_nothing
                solicited_and_gathered
                full_queues_refuse_and_recover
                misuse_is_refused_before_it_leaves
            });
            conformance!(cases memory {
                a_write_is_there_when_the_next_send_arrives
                a_region_to_be_filled_has_all_that_was_written
                writes_change_nothing_else
                a_large_write_arrives_whole
                reads_bring_what_is_there
                many_reads_at_once_come_back_in_order
                sends_behind_a_read_do_not_complete_it
                writes_out_of_bounds_are_refused
                reads_out_of_bounds_are_refused
                empty_reads_complete_in_their_turn
                empty_writes_are_not_checked
                the_wrong_right_is_refused
                unknown_tags_are_refused
                a_tag_of_another_connection_is_refused
                a_revoked_tag_is_refused
                send_with_invalidate_revokes
                only_live_regions_can_be_invalidated_by_the_peer
                a_full_region_table_refuses_and_recovers
                files_are_payload_too
                nothing_is_copied_that_need_not_be
                traffic_is_counted
            });
            conformance!(cases setup {
                private_data_both_ways
                long_private_data
                a_rejection_carries_its_reason
                read_depths_are_negotiated
                nobody_listens
            });
            conformance!(cases ends {
                close_lets_what_was_posted_out
                the_last_message_arrives_before_the_end
                dropping_a_queue_pair_ends_it
                everything_flushes_and_buffers_come_back
                a_closed_queue_pair_takes_no_work
            });
            conformance!(cases vanish {
                a_peer_that_dies_in_mid_write
            });
        }
    };
    (cases $group:ident { $($case:ident)* }) => {
        $(#[test]
        fn $case() {
            Net::run(&KIND, $group::$case);
        })*
    };
}

/// The process that gets killed, started by `vanish`.
#[test]
#[ignore = "a role of another test"]
fn victim() {
    vanish::victim();
}

fn iwarp_with(pool: Pool, config: iwarp::Config) -> Rc<dyn Provider> {
    Rc::new(iwarp::Provider::new(pool, iwarp::Config { congestion: Some("reno".into()), ..config }))
}

fn rnic_provider(pool: Pool) -> Rc<dyn Provider> {
    Rc::new(rnic::Provider::new(pool, rnic::Config::default()))
}

fn small_fpdus(config: iwarp::Config) -> iwarp::Config {
    iwarp::Config { fpdu_payload: 1000, ..config }
}

fn crc_off() -> iwarp::Config {
    iwarp::Config { crc: false, ..iwarp::Config::default() }
}

/// Completions come late, which must not disturb anybody.
fn late() -> Fault {
    Fault::new(1, Faults { delay_one_in: 3, delay_max: Duration::from_millis(2), ..Faults::default() })
}

/// The table: one line per provider, or per pair that must interoperate (the connecting provider comes second).
macro_rules! table {
    ($($name:ident: $make:expr $(, from $client:expr)?, copies $copies:literal, $medium:ident;)*) => {
        $(conformance!($name, $make, table!(client $make $(, $client)?), copies $copies, $medium);)*

        /// For the victim: the kind that its parent named.
        fn kind(name: &str) -> &'static Kind {
            [$(&$name::KIND),*].into_iter().find(|kind| kind.name == name).expect("a provider of the table")
        }
    };
    (client $make:expr) => { $make };
    (client $make:expr, $client:expr) => { $client };
}

// Whole FPDUs are copied out of a stream with markers, including their headers: a little more than twice.
table! {
    iwarp_crc: |pool| iwarp_with(pool, iwarp::Config::default()), copies 1, software;
    iwarp_plain: |pool| iwarp_with(pool, crc_off()), copies 1, software;
    iwarp_small_fpdus: |pool| iwarp_with(pool, small_fpdus(iwarp::Config::default())), copies 1, software;
    iwarp_plain_small_fpdus: |pool| iwarp_with(pool, small_fpdus(crc_off())), copies 1, software;
    iwarp_markers: |pool| iwarp_with(pool, iwarp::Config { markers: true, ..iwarp::Config::default() }), copies 3, software;
    iwarp_plain_markers: |pool| iwarp_with(pool, iwarp::Config { markers: true, ..crc_off() }), copies 3, software;
    iwarp_traced: |pool| {
        Rc::new(Wrapped::new(iwarp_with(pool, iwarp::Config::default()), Trace::default()))
    }, copies 1, software;
    iwarp_delayed: |pool| Rc::new(Wrapped::new(iwarp_with(pool, crc_off()), late())), copies 1, software;
    shared_memory: |pool| Rc::new(shm::Provider::new(pool, net::shm_config())), copies 0, software;
    shared_memory_captured: |pool| {
        let capture = Capture::new(tempfile::tempfile().unwrap(), 64 << 20).unwrap();
        let inner = Rc::new(shm::Provider::new(pool, net::shm_config()));
        Rc::new(Wrapped::new(inner, Pcap::new(capture)))
    }, copies 0, software;
    rnic_device: rnic_provider, copies 0, device;
    iwarp_from_rnic: |pool| iwarp_with(pool, crc_off()), from rnic_provider, copies 1, device_to_iwarp;
    rnic_from_iwarp: rnic_provider, from |pool| iwarp_with(pool, crc_off()), copies 1, iwarp_to_device;
}
