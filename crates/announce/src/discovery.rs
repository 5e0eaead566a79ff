//! A target service of WS-Discovery (April 2005): a computer in Windows' network view.
//!
//! It is a state machine: the caller passes it messages and the time. Attackers use WS-Discovery by unicast with forged
//! senders to multiply their traffic. So this service answers only messages that came by multicast from a network of the
//! receiving interface (`crate::run` checks that). It answers each message once, at a limited rate, and an answer is hardly
//! longer than its question.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use weft_machine::Time;
use weft_wire::wsd::{self, Computer, MAX_MESSAGE, Malformed, Request, Sequence, Wanted};

use crate::bucket::Bucket;
use crate::chance::Chance;

/// Most answers in a burst, and most per second, for all clients together.
const ANSWERS: (u32, u32) = (20, 10);
/// Longest delay of an answer, so that not all computers answer at once: APP_MAX_DELAY (WS-Discovery 3.1.4) is 500 ms.
const MAX_DELAY_MS: u64 = 250;
/// How many ids of answered messages are remembered: clients send each message several times (SOAP over UDP, appendix I).
const REMEMBERED: usize = 64;

/// An answer to somebody.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// How long it waits.
    pub after: Duration,
    /// Where to.
    pub to: SocketAddr,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Why a request for metadata is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It is no request for metadata.
    Request,
    /// It means another target.
    Elsewhere,
}

/// See the module.
pub struct Target {
    computer: Computer,
    version: String,
    /// The number of the run, and of the last message.
    sequence: Sequence,
    chance: Chance,
    answered: VecDeque<String>,
    limit: Bucket,
}

impl Target {
    /// A target for this computer. `instance` is larger in each run.
    #[must_use]
    pub fn new(computer: Computer, version: &str, instance: u64, chance: Chance, now: Time) -> Target {
        Target {
            computer,
            version: version.to_owned(),
            sequence: Sequence { instance, number: 0 },
            chance,
            answered: VecDeque::new(),
            limit: Bucket::new(now, ANSWERS.0, ANSWERS.1),
        }
    }

    /// Describes this computer from now on.
    pub fn set(&mut self, computer: Computer) {
        self.computer = computer;
    }

    /// The path of the metadata.
    #[must_use]
    pub fn path(&self) -> String {
        self.computer.path()
    }

    fn next(&mut self) -> Sequence {
        self.sequence.number = self.sequence.number.saturating_add(1);
        self.sequence
    }

    /// Tells everybody that the computer is there; `place` is the beginning of the URL of its metadata.
    pub fn hello(&mut self, place: &str) -> Vec<u8> {
        let sequence = self.next();
        wsd::hello(&self.computer, place, self.chance.uuid(), sequence)
    }

    /// Tells everybody that the computer leaves.
    pub fn bye(&mut self) -> Vec<u8> {
        let sequence = self.next();
        wsd::bye(&self.computer, self.chance.uuid(), sequence)
    }

    /// Answers a message that came by multicast, if it asks for this computer.
    pub fn handle(&mut self, now: Time, from: SocketAddr, place: &str, bytes: &[u8]) -> Option<Answer> {
        let request = match Request::parse(bytes) {
            Ok(request) => request,
            // Hello and Bye of others.
            Err(Malformed::Action) => return None,
            Err(e) => {
                tracing::debug!("WS-Discovery: a message of {from} is ignored: {e}");
                return None;
            }
        };
        let is_meant = match &request.wanted {
            Wanted::Probe { includes_computers, is_scoped } => *includes_computers && !is_scoped,
            Wanted::Resolve { address } => address.eq_ignore_ascii_case(&self.computer.address()),
            Wanted::Get { .. } => false,
        };
        if !is_meant || self.answered.contains(&request.id) || !self.limit.take(now) {
            return None;
        }
        if self.answered.len() >= REMEMBERED {
            self.answered.pop_front();
        }
        self.answered.push_back(request.id.clone());
        let after = match request.wanted {
            Wanted::Probe { .. } => self.chance.millis(0, MAX_DELAY_MS),
            Wanted::Resolve { .. } | Wanted::Get { .. } => Duration::ZERO,
        };
        let sequence = self.next();
        let bytes = wsd::matches(&self.computer, place, &request, self.chance.uuid(), sequence);
        Some(Answer { after, to: from, bytes })
    }

    /// Answers a request over HTTP.
    ///
    /// # Errors
    /// It is not Get, or for another target.
    pub fn metadata(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Refused> {
        debug_assert!(bytes.len() <= MAX_MESSAGE);
        let request = Request::parse(bytes).map_err(|_| Refused::Request)?;
        match &request.wanted {
            Wanted::Get { to } if to.eq_ignore_ascii_case(&self.computer.address()) => {
                Ok(wsd::metadata(&self.computer, &self.version, &request.id, self.chance.uuid()))
            }
            Wanted::Get { .. } => Err(Refused::Elsewhere),
            Wanted::Probe { .. } | Wanted::Resolve { .. } => Err(Refused::Request),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use weft_wire::wsd::Uuid;

    use super::*;

    const PLACE: &str = "http://192.0.2.7:5357";

    pub(crate) fn target() -> Target {
        let computer =
            Computer { id: Uuid::of_random([5; 16]), name: "nas".into(), workgroup: "HOME".into() };
        Target::new(computer, "1.0", 7, Chance::new(1), Time::ZERO)
    }

    /// A message with this action, id and body.
    pub(crate) fn message(action: &str, to: &str, id: &str, body: &str) -> Vec<u8> {
        format!(
            "<s:Envelope xmlns:s='http://www.w3.org/2003/05/soap-envelope' \
             xmlns:a='http://schemas.xmlsoap.org/ws/2004/08/addressing' \
             xmlns:d='http://schemas.xmlsoap.org/ws/2005/04/discovery'><s:Header><a:To>{to}</a:To>\
             <a:Action>http://schemas.xmlsoap.org/ws/{action}</a:Action><a:MessageID>{id}</a:MessageID></s:Header>\
             <s:Body>{body}</s:Body></s:Envelope>"
        )
        .into_bytes()
    }

    fn probe(id: &str) -> Vec<u8> {
        message("2005/04/discovery/Probe", "urn:x", id, "<d:Probe/>")
    }

    fn resolve(id: &str, address: &str) -> Vec<u8> {
        let reference =
            format!("<a:EndpointReference><a:Address>{address}</a:Address></a:EndpointReference>");
        message("2005/04/discovery/Resolve", "urn:x", id, &format!("<d:Resolve>{reference}</d:Resolve>"))
    }

    fn peer() -> SocketAddr {
        ([192, 0, 2, 9], 50_000).into()
    }

    #[test]
    fn whoever_looks_for_computers_finds_it_once() {
        let mut target = target();
        let address = target.computer.address();
        let answer = target.handle(Time::ZERO, peer(), PLACE, &probe("1")).unwrap();
        assert!(answer.to == peer() && answer.after <= Duration::from_millis(MAX_DELAY_MS));
        let text = String::from_utf8(answer.bytes).unwrap();
        assert!(text.contains("ProbeMatches") && text.contains("<a:RelatesTo>1</a:RelatesTo>"), "{text}");
        assert!(text.contains("InstanceId=\"7\" MessageNumber=\"1\""), "{text}");
        assert_eq!(target.handle(Time::ZERO, peer(), PLACE, &probe("1")), None, "repeated");
        let resolved = target.handle(Time::ZERO, peer(), PLACE, &resolve("2", &address)).unwrap();
        let text = String::from_utf8(resolved.bytes).unwrap();
        assert!(text.contains("ResolveMatches") && text.contains(&format!("{PLACE}/{}", target.computer.id)));
        assert_eq!(target.handle(Time::ZERO, peer(), PLACE, &resolve("3", "urn:uuid:other")), None);
    }

    #[test]
    fn its_own_messages_are_no_question() {
        let mut target = target();
        for bytes in [target.hello(PLACE), target.bye()] {
            assert_eq!(target.handle(Time::ZERO, peer(), PLACE, &bytes), None);
        }
    }

    #[test]
    fn a_flood_gets_few_answers() {
        let mut target = target();
        let mut answers = 0;
        for second in 0..10 {
            let now = Time::ZERO + Duration::from_secs(second);
            for i in 0..1000 {
                answers += usize::from(
                    target.handle(now, peer(), PLACE, &probe(&format!("{second} {i}"))).is_some(),
                );
            }
        }
        assert_eq!(answers, 20 + 9 * 10);
        assert!(target.answered.len() <= REMEMBERED);
    }

    #[test]
    fn metadata_are_for_those_who_mean_it() {
        let mut target = target();
        let address = target.computer.address();
        let get = |to: &str| message("2004/09/transfer/Get", to, "1", "");
        let text = String::from_utf8(target.metadata(&get(&address)).unwrap()).unwrap();
        assert!(text.contains("nas/Workgroup:HOME"), "{text}");
        assert_eq!(target.metadata(&get("urn:uuid:other")), Err(Refused::Elsewhere));
        assert_eq!(target.metadata(&probe("1")), Err(Refused::Request));
        assert_eq!(target.metadata(b"<x/>"), Err(Refused::Request));
    }
}
