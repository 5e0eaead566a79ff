//! What a destination says about itself: to its source, and to an administrator.

use std::sync::Weak;

use weft_wire::repl::control::Report;

use super::Destination;
use crate::status::{PeerStatus, Phase, Role, Status};

impl Destination {
    pub(super) fn report(&self) -> Report {
        let core = self.core();
        let fill = self.log.fill();
        Report {
            epoch: core.state.era().epoch,
            source: core.retired,
            consistent: core.state.consistent && core.failed.is_none(),
            last: fill.durable,
            applied: core.applied,
            log_bytes: core.state.layout.log_bytes,
            log_used: fill.used,
            applied_ms: core.applied_ms,
        }
    }

    /// Its current status.
    pub fn status(&self) -> Status {
        let silent = self.is_source_silent();
        let now = self.side.wall.now_ms();
        self.handle(|core| core.catch_up(self.log.fill().durable, now));
        let core = self.core();
        let fill = self.log.fill();
        let (phase, since_ms) = match core.phase {
            // These phases hold whether or not a source is connected.
            phase @ (Phase::Failed | Phase::Suspended | Phase::WaitingForSource) => (phase, core.since_ms),
            // The earlier phase is over.
            _ if core.lost_ms > 0 => (Phase::WaitingForSource, core.lost_ms),
            _ if silent => (Phase::WaitingForSource, core.heard_ms),
            phase => (phase, core.since_ms),
        };
        let (lag_bytes, oldest) = self.log.behind(core.applied);
        let source = PeerStatus {
            name: "source".into(),
            mode: core.mode,
            phase,
            since_ms,
            acknowledged: fill.durable,
            applied: core.applied,
            bytes_done: core.direct_bytes,
            bytes_remaining: 0,
            bytes_sent: core.direct_bytes,
            rate: 0.0,
            eta_seconds: None,
            lag_records: core.missing(fill.durable),
            lag_bytes,
            lag_seconds: oldest.map(|ms| self.side.wall.age(ms).as_secs_f64()).unwrap_or_default(),
            lag_alert: false,
            unprotected: false,
            records_sent: 0,
            record_bytes_sent: 0,
            heard_ms: core.heard_ms,
            lost_ms: if phase == Phase::WaitingForSource { core.lost_ms } else { 0 },
            last_error: core
                .failed
                .clone()
                .or_else(|| core.damage.map(|damage| damage.to_string()))
                .or_else(|| self.refused_source(&core)),
            verified: None,
        };
        Status {
            role: if core.retired { Role::Source } else { Role::Destination },
            partnership: core.state.partnership.iter().map(|byte| format!("{byte:02x}")).collect(),
            epoch: core.state.era().epoch,
            generation: self.journal.generation(),
            last: fill.durable,
            applied: core.applied,
            consistent: core.state.consistent,
            gave_up: core.is_given_up(),
            sizes: core.state.members.iter().map(|member| member.size).collect(),
            log_bytes: core.state.layout.log_bytes,
            log_used: fill.used,
            log_wait_ms: 0,
            written_bytes: 0,
            full: self.space.is_wanted(),
            unprotected_writes: 0,
            read_errors: 0,
            last_read_error: None,
            picture_ended: core
                .snapshots
                .iter()
                .filter_map(Weak::upgrade)
                .find_map(|picture| picture.ended()),
            in_flight_bytes: 0,
            peers: vec![source],
            last_error: core.failed.clone(),
        }
    }
}
