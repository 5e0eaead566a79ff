//! The side of a group that has the most data, as far as others know.

use serde::{Deserialize, Serialize};

use super::config::{MOST_NAME, MOST_PARTNERS};
use super::position::RemotePosition;
use crate::out::Said;

/// The side that has the most.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(default)]
pub(super) struct Most {
    /// Its epoch.
    #[serde(rename = "most_epoch")]
    pub epoch: u64,
    /// Its last record; zero if unknown.
    #[serde(rename = "most_last")]
    pub last: u64,
    /// Its host.
    pub holder: Said,
    /// Hosts that could not be asked.
    pub silent: Vec<Said>,
}

impl Most {
    /// Drops implausible text: it comes from another server, and is kept.
    pub fn keep_short(&mut self) {
        self.silent.retain(|host| host.len() <= MOST_NAME);
        self.silent.truncate(MOST_PARTNERS);
        if self.holder.len() > MOST_NAME {
            *self = Most::default();
        }
    }

    /// Takes a host's position into account.
    pub fn hear(&mut self, (epoch, last): (u64, u64), host: &str) {
        if (epoch, last) > (self.epoch, self.last) {
            (self.epoch, self.last, self.holder) = (epoch, last, host.to_owned().into());
        }
    }

    /// Takes into account what a side knows another one to have; `before` is the epoch that a server of an older
    /// version means.
    pub fn hear_known(&mut self, known: &RemotePosition, before: u64) {
        self.hear((known.epoch.unwrap_or(before), known.last), &known.holder);
    }

    /// What a copy with everything through record `last` of this epoch lacks.
    pub fn missing(&self, epoch: u64, last: u64) -> Option<String> {
        let holder = &self.holder;
        match (self.epoch, self.last) {
            most if most <= (epoch, last) => None,
            (later, _) if later > epoch => {
                Some(format!("this copy is of epoch {epoch}; {holder} has later writes, of epoch {later}"))
            }
            (_, most) => Some(format!(
                "this copy lacks records {} to {most}; {holder} has them",
                last.saturating_add(1)
            )),
        }
    }

    /// The sentence about hosts that could not be asked.
    pub fn unasked(&self) -> String {
        match self.silent.is_empty() {
            true => String::new(),
            false => format!("{} could not be asked and may have more", joined(&self.silent)),
        }
    }
}

/// The hosts in a sentence.
pub(super) fn joined(hosts: &[Said]) -> String {
    hosts.iter().map(|host| &**host).collect::<Vec<_>>().join(" and ")
}
