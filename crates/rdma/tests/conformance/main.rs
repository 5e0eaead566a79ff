//! What every provider owes its users: one list of cases, run over one table of providers.
//!
//! Spec: the contract in `weft_rdma::verbs`; RFC 5040 5.5 (order), 7.2 (checks). A new provider is one line in the
//! table at the end of this file.

mod ends;
mod memory;
mod messages;
mod net;
mod setup;
mod vanish;
mod wrapped;

use std::rc::Rc;
use std::time::Duration;

use net::Net;
use weft_machine::Pool;
use weft_rdma::wrap::Wrapped;
use weft_rdma::wrap::fault::{Fault, Faults};
use weft_rdma::wrap::trace::Trace;
use weft_rdma::{Provider, iwarp, shm};

/// How to make a provider, and what it may cost.
struct Kind {
    name: &'static str,
    make: fn(Pool) -> Rc<dyn Provider>,
    /// Payload copies by our own code per received byte.
    copies_per_received_byte: u64,
}

macro_rules! conformance {
    ($name:ident, $make:expr, copies $copies:literal) => {
        mod $name {
            use super::*;

            pub const KIND: Kind =
                Kind { name: stringify!($name), make: $make, copies_per_received_byte: $copies };

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
                writes_change_nothing_else
                a_large_write_arrives_whole
                reads_bring_what_is_there
                many_reads_at_once_come_back_in_order
                writes_out_of_bounds_are_refused
                reads_out_of_bounds_are_refused
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

/// The process that dies, started by `vanish`.
#[test]
#[ignore = "a role of another test"]
fn victim() {
    vanish::victim();
}

fn iwarp_with(pool: Pool, config: iwarp::Config) -> Rc<dyn Provider> {
    Rc::new(iwarp::Provider::new(pool, iwarp::Config { congestion: Some("reno".into()), ..config }))
}

fn small_fpdus(config: iwarp::Config) -> iwarp::Config {
    iwarp::Config { fpdu_payload: 1000, ..config }
}

fn crc_off() -> iwarp::Config {
    iwarp::Config { crc: false, ..iwarp::Config::default() }
}

/// Completions come late, which nobody may mind.
fn late() -> Fault {
    Fault::new(1, Faults { delay_one_in: 3, delay_max: Duration::from_millis(2), ..Faults::default() })
}

/// The table: one line per provider.
macro_rules! table {
    ($($name:ident: $make:expr, copies $copies:literal;)*) => {
        $(conformance!($name, $make, copies $copies);)*

        /// For the victim: the kind whose name its parent gave.
        fn kind(name: &str) -> &'static Kind {
            [$(&$name::KIND),*].into_iter().find(|kind| kind.name == name).expect("a provider of the table")
        }
    };
}

// Out of a stream with markers whole FPDUs are copied, and their headers with them: a little more than twice.
table! {
    iwarp_crc: |pool| iwarp_with(pool, iwarp::Config::default()), copies 1;
    iwarp_plain: |pool| iwarp_with(pool, crc_off()), copies 1;
    iwarp_small_fpdus: |pool| iwarp_with(pool, small_fpdus(iwarp::Config::default())), copies 1;
    iwarp_plain_small_fpdus: |pool| iwarp_with(pool, small_fpdus(crc_off())), copies 1;
    iwarp_markers: |pool| iwarp_with(pool, iwarp::Config { markers: true, ..iwarp::Config::default() }), copies 3;
    iwarp_plain_markers: |pool| iwarp_with(pool, iwarp::Config { markers: true, ..crc_off() }), copies 3;
    iwarp_traced: |pool| {
        Rc::new(Wrapped::new(iwarp_with(pool, iwarp::Config::default()), Trace::default()))
    }, copies 1;
    iwarp_delayed: |pool| Rc::new(Wrapped::new(iwarp_with(pool, crc_off()), late())), copies 1;
    shared_memory: |pool| Rc::new(shm::Provider::new(pool, net::shm_config())), copies 0;
}
