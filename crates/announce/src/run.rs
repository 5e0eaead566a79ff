//! The thread of announcements: moves packets between the sockets of each link and the state machines, and follows the
//! interfaces as they come and go.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as std_mpsc};
use std::time::Duration;

use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use weft_machine::net::Interface;
use weft_machine::{Time, clock, random, rt};
use weft_wire::wsd::{Computer, HTTP_PORT};

use crate::announcement::Announcement;
use crate::chance::Chance;
use crate::discovery::Target;
use crate::links::{Link, links};
use crate::mdns::{Family, Responder, To};
use crate::metadata;
use crate::services::services;
use crate::socket::{self, Multicast};

/// How often the interfaces are looked at, and sockets that could not be opened are tried again.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Packets that wait for the state machines; then they wait in the sockets, and the kernel drops more.
const MAX_EVENTS: usize = 64;
/// When Hello is sent: four times, with growing gaps (SOAP over UDP, appendix I).
const HELLOS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(150), Duration::from_millis(450), Duration::from_millis(950)];
/// Most messages of WS-Discovery that wait for their time.
const MAX_DELAYED: usize = 64;
/// How long sending goodbyes may take.
const END_WITHIN: Duration = Duration::from_secs(2);
/// Exists while Avahi runs.
const AVAHI: &str = "/run/avahi-daemon/socket";

/// Announces a server, on a thread of its own, while there is something to announce.
#[derive(Default)]
pub struct Announcer {
    running: Mutex<Option<Running>>,
    warnings: Warnings,
}

/// What the administrator should know now.
type Warnings = Arc<Mutex<Vec<String>>>;

struct Running {
    announced: watch::Sender<Option<Arc<Announcement>>>,
    ended: std_mpsc::Receiver<()>,
}

impl Announcer {
    /// Announces this from now on; `None` says goodbye.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn set(&self, announcement: Option<Announcement>) -> io::Result<()> {
        let mut running = lock(&self.running);
        let announcement = announcement.filter(|one| one.mdns || one.ws_discovery).map(Arc::new);
        match (&*running, announcement) {
            (Some(thread), Some(announcement)) => drop(thread.announced.send_replace(Some(announcement))),
            (None, Some(announcement)) => *running = Some(start(announcement, self.warnings.clone())?),
            (Some(thread), None) => {
                thread.announced.send_replace(None);
                *running = None;
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// What the administrator should know now, such as names that other servers have: one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        lock(&self.warnings).clone()
    }

    /// Says goodbye, and waits until that is sent.
    pub fn end(&self) {
        let Some(thread) = lock(&self.running).take() else { return };
        thread.announced.send_replace(None);
        // The thread drops its end; it may also have ended by an error, which it has logged.
        if thread.ended.recv_timeout(END_WITHIN) == Err(std_mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("the goodbye to other hosts was not sent in {} s", END_WITHIN.as_secs());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start(announcement: Arc<Announcement>, warnings: Warnings) -> io::Result<Running> {
    let seed = u64::from_ne_bytes(random::bytes()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let (announced, changes) = watch::channel(Some(announcement.clone()));
    let (end, ended) = std_mpsc::channel();
    let announce = move || {
        runtime.block_on(run(announcement, changes, Chance::new(seed), &warnings));
        lock(&warnings).clear();
        drop(end);
    };
    std::thread::Builder::new().name("weft-announce".to_owned()).spawn(announce)?;
    Ok(Running { announced, ended })
}

/// An event for the station.
enum Event {
    Packet {
        link: u32,
        what: Multicast,
        from: SocketAddr,
        bytes: Vec<u8>,
    },
    /// There is another announcement, or none any more.
    Changed,
}

async fn run(
    first: Arc<Announcement>,
    mut changes: watch::Receiver<Option<Arc<Announcement>>>,
    mut chance: Chance,
    warnings: &Mutex<Vec<String>>,
) {
    let (events, mut happened) = mpsc::channel(MAX_EVENTS);
    let (mut watched, told) = (changes.clone(), events.clone());
    tokio::spawn(async move {
        // Ends with either side.
        while watched.changed().await.is_ok() && told.send(Event::Changed).await.is_ok() {}
    });
    // The number of a run must grow: seconds since 1970.
    let instance = clock::wall().as_secs();
    let target =
        Target::new(computer(&first), &first.version, instance, Chance::new(chance.draw()), rt::now());
    let target = Arc::new(Mutex::new(target));
    let told = HashSet::new();
    let mut station =
        Station { announcement: first, links: Vec::new(), target, chance, events, told, delayed: Vec::new() };
    station.mention_avahi();
    let mut look = rt::now();
    loop {
        let now = rt::now();
        if now >= look {
            station.look(now);
            look = now + LOOK_EVERY;
        }
        station.on_time(now);
        let next = station.wants().map_or(look, |next| next.min(look));
        match tokio::time::timeout(next.since(rt::now()), happened.recv()).await {
            Ok(Some(Event::Packet { link, what, from, bytes })) => station.handle(link, what, from, &bytes),
            Ok(Some(Event::Changed) | None) => {
                let announcement = changes.borrow_and_update().clone();
                let Some(announcement) = announcement else { break };
                station.change(announcement);
                look = rt::now();
            }
            // Something is due.
            Err(_) => {}
        }
        station.warn(warnings);
    }
    station.end();
}

fn computer(announcement: &Announcement) -> Computer {
    let Announcement { id, name, workgroup, .. } = announcement;
    // As Windows shows computers.
    Computer { id: *id, name: name.to_uppercase(), workgroup: workgroup.to_uppercase() }
}

/// All links and what is announced there.
struct Station {
    announcement: Arc<Announcement>,
    links: Vec<OpenLink>,
    target: Arc<Mutex<Target>>,
    chance: Chance,
    events: mpsc::Sender<Event>,
    /// The faults that were logged, each once until it is gone.
    told: HashSet<String>,
    delayed: Vec<Delayed>,
}

/// A message of WS-Discovery that waits for its time.
struct Delayed {
    due: Time,
    link: u32,
    family: Family,
    /// Somebody, or everybody.
    to: Option<SocketAddr>,
    bytes: Vec<u8>,
}

/// A link with its sockets.
struct OpenLink {
    link: Arc<Link>,
    responder: Option<Responder>,
    sockets: Vec<OpenSocket>,
    metadata: Vec<Served>,
}

/// A multicast socket, and the task that reads it.
struct OpenSocket {
    what: Multicast,
    family: Family,
    socket: Arc<UdpSocket>,
    reads: AbortHandle,
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        self.reads.abort();
    }
}

/// An address where metadata are served, and the task that does it.
struct Served {
    address: IpAddr,
    serves: AbortHandle,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.serves.abort();
    }
}

impl OpenLink {
    fn socket(&self, what: Multicast, family: Family) -> Option<&UdpSocket> {
        let found = self.sockets.iter().find(|one| one.what == what && one.family == family);
        found.map(|one| &*one.socket)
    }

    /// The URL of the metadata for clients that ask by this version of IP.
    fn place(&self, family: Family) -> Option<String> {
        let served = self.metadata.iter().find(|served| Family::of(served.address) == family)?;
        Some(match served.address {
            IpAddr::V4(ip) => format!("http://{ip}:{HTTP_PORT}"),
            IpAddr::V6(ip) => format!("http://[{ip}]:{HTTP_PORT}"),
        })
    }

    fn send(&self, what: Multicast, family: Family, to: Option<SocketAddr>, bytes: &[u8]) {
        let Some(socket) = self.socket(what, family) else { return };
        let to = to.unwrap_or_else(|| what.group(family, self.link.index));
        if let Err(e) = socket.try_send_to(bytes, to) {
            // Like a lost packet: clients ask again.
            tracing::debug!("{what:?} on {}: cannot send to {to}: {e}", self.link.name);
        }
    }

    /// Sends the packets of the responder.
    fn flush(&mut self) {
        let Some(mut responder) = self.responder.take() else { return };
        while let Some(packet) = responder.pop() {
            match packet.to {
                To::Everybody => {
                    for family in [Family::V4, Family::V6] {
                        self.send(Multicast::Mdns, family, None, &packet.bytes);
                    }
                }
                To::Group(family) => self.send(Multicast::Mdns, family, None, &packet.bytes),
                To::One(to) => self.send(Multicast::Mdns, Family::of(to.ip()), Some(to), &packet.bytes),
            }
        }
        self.responder = Some(responder);
    }
}

impl Station {
    fn mention_avahi(&self) {
        if self.announcement.mdns && Path::new(AVAHI).exists() {
            tracing::info!(
                "Avahi runs on this host: it and this server share port 5353, and each announces its own services"
            );
        }
    }

    /// Logs the warnings that are new, and keeps those of now.
    fn warn(&self, warnings: &Mutex<Vec<String>>) {
        let of_link = |open: &OpenLink| {
            let names = open.responder.as_ref()?.substitutes();
            (!names.is_empty()).then(|| {
                format!(
                    "another server on {} has the name {}, so this one is announced there as {}: choose another name with announce.name",
                    open.link.name,
                    self.announcement.name,
                    names.join(" and ")
                )
            })
        };
        let now: Vec<String> = self.links.iter().filter_map(of_link).collect();
        let mut before = lock(warnings);
        for warning in now.iter().filter(|warning| !before.contains(warning)) {
            tracing::warn!("{warning}");
        }
        if *before != now {
            *before = now;
        }
    }

    /// Logs a fault once, however long it lasts.
    fn tell(&mut self, fault: String) {
        if self.told.len() < 256 && !self.told.contains(&fault) {
            tracing::warn!("{fault}");
            self.told.insert(fault);
        }
    }

    /// Follows the interfaces of this host.
    fn look(&mut self, now: Time) {
        let found = match weft_machine::net::interfaces() {
            Ok(found) => found,
            Err(e) => return self.tell(format!("the interfaces of this host cannot be listed: {e}")),
        };
        let wanted = links(&found, &self.announcement);
        self.close(&wanted);
        if wanted.is_empty() {
            let listen: Vec<String> = self.announcement.listen.iter().map(ToString::to_string).collect();
            let on = match &self.announcement.interfaces[..] {
                [] => "no interface".to_owned(),
                names => format!("none of the interfaces {}", names.join(", ")),
            };
            self.tell(format!(
                "the server is not announced: {on} of this host has an address that it listens on ({})",
                listen.join(", ")
            ));
        }
        let own: Vec<IpAddr> = found.iter().map(|one: &Interface| one.addr).collect();
        for link in wanted {
            self.open(now, link, &own);
        }
    }

    /// Closes links that are gone, and the sockets of protocols that are switched off.
    fn close(&mut self, wanted: &[Link]) {
        let Announcement { mdns, ws_discovery, .. } = *self.announcement;
        self.links.retain(|open| {
            let stays = wanted.iter().any(|link| link.index == open.link.index);
            if !stays {
                tracing::info!("not announced on {} any more", open.link.name);
            }
            stays
        });
        for open in &mut self.links {
            if !mdns && let Some(mut responder) = open.responder.take() {
                responder.end();
                open.responder = Some(responder);
                open.flush();
                open.responder = None;
            }
            if !ws_discovery && !open.metadata.is_empty() {
                say_bye(open, &self.target);
                open.metadata.clear();
            }
            open.sockets.retain(|one| match one.what {
                Multicast::Mdns => mdns,
                Multicast::WsDiscovery => ws_discovery,
            });
        }
    }

    /// Opens the missing sockets of a link, and takes over its addresses.
    fn open(&mut self, now: Time, link: Link, own: &[IpAddr]) {
        let announcement = self.announcement.clone();
        let at = self.links.iter().position(|open| open.link.index == link.index);
        let mut open = match at {
            Some(at) => self.links.swap_remove(at),
            None => {
                let (link, sockets) = (Arc::new(link.clone()), Vec::new());
                OpenLink { link, responder: None, sockets, metadata: Vec::new() }
            }
        };
        let is_new = at.is_none() || *open.link != link;
        open.link = Arc::new(link);
        for (what, is_wanted) in
            [(Multicast::Mdns, announcement.mdns), (Multicast::WsDiscovery, announcement.ws_discovery)]
        {
            for family in [Family::V4, Family::V6] {
                if is_wanted {
                    self.open_socket(&mut open, what, family);
                } else {
                    open.sockets.retain(|one| one.what != what);
                }
            }
        }
        if announcement.mdns && open.sockets.iter().any(|one| one.what == Multicast::Mdns) {
            let addresses = (open.link.addresses.clone(), own.to_vec());
            match &mut open.responder {
                Some(responder) => responder.set_addresses(now, addresses.0, addresses.1),
                None => {
                    let (name, chance) = (&announcement.name, Chance::new(self.chance.draw()));
                    let services = services(&announcement);
                    let responder = Responder::new(&open.link.name, name, services, addresses, chance, now);
                    open.responder = Some(responder);
                }
            }
        }
        let greets = announcement.ws_discovery && self.serve_metadata(&mut open);
        if greets {
            self.greet(now, &open);
        }
        if is_new && !open.sockets.is_empty() {
            let addresses: Vec<String> = open.link.addresses.iter().map(ToString::to_string).collect();
            let by: Vec<&str> = [(announcement.mdns, "mDNS"), (announcement.ws_discovery, "WS-Discovery")]
                .into_iter()
                .filter_map(|(is_used, name)| is_used.then_some(name))
                .collect();
            tracing::info!(
                "announced as {} by {} on {} ({})",
                announcement.name,
                by.join(" and "),
                open.link.name,
                addresses.join(", ")
            );
        }
        self.links.push(open);
    }

    fn open_socket(&mut self, open: &mut OpenLink, what: Multicast, family: Family) {
        let own = open.link.addresses.iter().copied().find(|ip| Family::of(*ip) == family);
        let Some(own) = own else {
            return open.sockets.retain(|one| one.what != what || one.family != family);
        };
        if open.socket(what, family).is_some() {
            return;
        }
        match socket::open(what, open.link.index, own) {
            Ok(socket) => {
                let socket = Arc::new(socket);
                let reads = tokio::spawn(read(socket.clone(), what, open.link.index, self.events.clone()));
                let reads = reads.abort_handle();
                open.sockets.push(OpenSocket { what, family, socket, reads });
            }
            Err(e) => {
                let port = what.group(family, 0).port();
                let advice = match (e.kind(), what) {
                    (io::ErrorKind::AddrInUse, _) => {
                        format!(
                            "; a program that does not share UDP port {port} has it (ss -lunp sport = {port} names it)"
                        )
                    }
                    _ => String::new(),
                };
                self.tell(format!(
                    "the server is not announced by {what:?} on {} ({own}): {e}{advice}",
                    open.link.name
                ));
            }
        }
    }

    /// Serves metadata at each address of the link; returns whether that is new.
    fn serve_metadata(&mut self, open: &mut OpenLink) -> bool {
        let addresses = open.link.addresses.clone();
        open.metadata.retain(|served| addresses.contains(&served.address) && !served.serves.is_finished());
        let mut is_new = false;
        for address in addresses {
            if open.metadata.iter().any(|served| served.address == address) {
                continue;
            }
            match listen(address, open.link.index) {
                Ok(listener) => {
                    let (target, link) = (self.target.clone(), open.link.clone());
                    let serves = tokio::spawn(metadata::serve(listener, target, link)).abort_handle();
                    open.metadata.push(Served { address, serves });
                    is_new = true;
                }
                Err(e) => {
                    let advice = match e.kind() {
                        io::ErrorKind::AddrInUse => {
                            "; another program has the port, as wsdd and wsdd2 do: stop it, or set announce.ws_discovery = false"
                        }
                        _ => "",
                    };
                    self.tell(format!(
                        "WS-Discovery cannot listen on {address} port {HTTP_PORT}: {e}{advice}"
                    ));
                }
            }
        }
        is_new
    }

    /// Sends Hello several times.
    fn greet(&mut self, now: Time, open: &OpenLink) {
        for family in [Family::V4, Family::V6] {
            let Some(place) =
                open.place(family).filter(|_| open.socket(Multicast::WsDiscovery, family).is_some())
            else {
                continue;
            };
            // A repeated message has the same id (SOAP over UDP, appendix I).
            let bytes = lock(&self.target).hello(&place);
            for after in HELLOS {
                let (due, link, bytes) = (now + after, open.link.index, bytes.clone());
                self.delay(Delayed { due, link, family, to: None, bytes });
            }
        }
    }

    fn delay(&mut self, delayed: Delayed) {
        if self.delayed.len() < MAX_DELAYED {
            self.delayed.push(delayed);
        }
    }

    /// Replaces what is announced.
    fn change(&mut self, announcement: Arc<Announcement>) {
        let before = std::mem::replace(&mut self.announcement, announcement.clone());
        let now = rt::now();
        self.told.clear();
        let computer = computer(&announcement);
        if computer != self::computer(&before) {
            for open in self.links.iter().filter(|open| !open.metadata.is_empty()) {
                say_bye(open, &self.target);
            }
            lock(&self.target).set(computer);
            for open in &mut self.links {
                // The next look greets again.
                open.metadata.clear();
            }
        }
        let services = services(&announcement);
        for open in &mut self.links {
            let Some(mut responder) = open.responder.take() else { continue };
            if announcement.name == before.name {
                responder.set_services(now, services.clone());
                open.responder = Some(responder);
                open.flush();
            } else {
                // The next look begins with the new name.
                responder.end();
                open.responder = Some(responder);
                open.flush();
                open.responder = None;
            }
        }
    }

    fn handle(&mut self, link: u32, what: Multicast, from: SocketAddr, bytes: &[u8]) {
        let now = rt::now();
        let Some(open) = self.links.iter_mut().find(|open| open.link.index == link) else { return };
        if !open.link.is_near(from.ip()) {
            return tracing::debug!("{what:?} on {}: {from} is of another network", open.link.name);
        }
        match what {
            Multicast::Mdns => {
                if let Some(responder) = &mut open.responder {
                    responder.handle(now, from, bytes);
                    open.flush();
                }
            }
            Multicast::WsDiscovery => {
                let family = Family::of(from.ip());
                let Some(place) = open.place(family) else { return };
                let answer = lock(&self.target).handle(now, from, &place, bytes);
                if let Some(answer) = answer {
                    let (due, to) = (now + answer.after, Some(answer.to));
                    self.delay(Delayed { due, link, family, to, bytes: answer.bytes });
                }
            }
        }
    }

    fn wants(&self) -> Option<Time> {
        let responders = self.links.iter().filter_map(|open| open.responder.as_ref()?.wants());
        responders.chain(self.delayed.iter().map(|delayed| delayed.due)).min()
    }

    fn on_time(&mut self, now: Time) {
        for open in &mut self.links {
            if let Some(responder) = &mut open.responder {
                responder.on_time(now);
            }
            open.flush();
        }
        let (due, waiting) = std::mem::take(&mut self.delayed)
            .into_iter()
            .partition::<Vec<_>, _>(|delayed| delayed.due <= now);
        self.delayed = waiting;
        for Delayed { link, family, to, bytes, .. } in due {
            if let Some(open) = self.links.iter().find(|open| open.link.index == link) {
                open.send(Multicast::WsDiscovery, family, to, &bytes);
            }
        }
    }

    /// Says goodbye everywhere.
    fn end(&mut self) {
        for open in &mut self.links {
            if let Some(responder) = &mut open.responder {
                responder.end();
            }
            open.flush();
            if !open.metadata.is_empty() {
                say_bye(open, &self.target);
            }
        }
    }
}

/// Sends Bye twice, because a packet may be lost. There is no later repetition: the process ends.
fn say_bye(open: &OpenLink, target: &Mutex<Target>) {
    let bytes = lock(target).bye();
    for family in [Family::V4, Family::V6, Family::V4, Family::V6] {
        open.send(Multicast::WsDiscovery, family, None, &bytes);
    }
}

/// A listener for metadata. A link-local address needs its interface.
fn listen(address: IpAddr, index: u32) -> io::Result<TcpListener> {
    let mut address = SocketAddr::new(address, HTTP_PORT);
    if let SocketAddr::V6(v6) = &mut address
        && v6.ip().is_unicast_link_local()
    {
        v6.set_scope_id(index);
    }
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Reads a socket until the task is aborted.
async fn read(socket: Arc<UdpSocket>, what: Multicast, link: u32, events: mpsc::Sender<Event>) {
    let most = what.max_received();
    // One byte more shows that a packet is longer.
    let mut buffer = vec![0; most.saturating_add(1)];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((len, from)) if len <= most => {
                let bytes = buffer.get(..len).unwrap_or_default().to_vec();
                if events.send(Event::Packet { link, what, from, bytes }).await.is_err() {
                    return;
                }
            }
            Ok((_, from)) => tracing::debug!("{what:?}: a packet of {from} is too long"),
            Err(e) => {
                tracing::debug!("{what:?}: cannot receive: {e}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}
