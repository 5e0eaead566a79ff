//! The status of a source, from what it knows without asking destinations.

use weft_machine::rt;

use super::{Core, Partner, Source};
use crate::bitmap::Bitmap;
use crate::state::PeerState;
use crate::status::{Mode, PeerStatus, Phase, Role, Status};

impl Source {
    /// Its history.
    #[cfg(test)]
    pub(crate) fn eras(&self) -> Vec<weft_wire::repl::control::Era> {
        self.core().state.eras.clone()
    }

    /// Its current status.
    pub fn status(&self) -> Status {
        let core = self.core();
        let fill = self.log.fill();
        let Core { state, peers, .. } = &*core;
        let peers = peers.iter().zip(&state.peers).filter_map(|pair| match pair {
            (Some(partner), Some(state)) => {
                Some(self.peer_status(partner, state, core.halted.as_ref().map(|h| h.phase)))
            }
            _ => None,
        });
        Status {
            role: Role::Source,
            partnership: state.partnership.iter().map(|byte| format!("{byte:02x}")).collect(),
            epoch: state.era().epoch,
            generation: self.journal.generation(),
            last: fill.durable,
            applied: core.applied(&fill),
            consistent: true,
            gave_up: false,
            sizes: state.members.iter().map(|member| member.size).collect(),
            log_bytes: state.layout.log_bytes,
            log_used: fill.used,
            log_wait_ms: core.log_wait.as_millis() as u64,
            written_bytes: core.written_bytes,
            full: self.space.is_wanted(),
            unprotected_writes: core.answered_alone,
            read_errors: core.failed_reads.count,
            last_read_error: core.failed_reads.last.clone(),
            picture_ended: None,
            in_flight_bytes: core.active_bytes as u64,
            peers: peers.collect(),
            last_error: core.halted.as_ref().map(|halt| halt.why.clone()),
        }
    }

    fn peer_status(&self, partner: &Partner, state: &PeerState, halted: Option<Phase>) -> PeerStatus {
        let (lag_bytes, oldest) = self.log.behind(partner.acked);
        let lag = oldest.map(|ms| self.side.wall.age(ms)).unwrap_or_default();
        let remaining: u64 = partner.maps.iter().map(Bitmap::bytes).sum();
        let elapsed = rt::now().since(partner.copy_began).as_secs_f64();
        let rate = if elapsed > 0.0 { partner.copied_bytes as f64 / elapsed } else { 0.0 };
        // It does not follow at present, and nothing is decided until it has been asked again.
        let is_lost = halted.is_none() && partner.is_lost();
        let (phase, since_ms) = match is_lost {
            true => (Phase::WaitingForDestination, partner.lost_ms),
            false => (halted.unwrap_or(partner.phase), partner.since_ms),
        };
        let is_away = phase == Phase::WaitingForDestination;
        PeerStatus {
            name: state.name.clone(),
            mode: Some(state.mode),
            phase,
            since_ms,
            acknowledged: partner.acked,
            applied: partner.applied,
            bytes_done: partner.copied_bytes,
            bytes_remaining: remaining,
            bytes_sent: partner.sent_bytes,
            rate,
            eta_seconds: (remaining > 0 && rate > 0.0).then(|| remaining as f64 / rate),
            lag_records: self.log.fill().durable.saturating_sub(partner.acked),
            lag_bytes,
            lag_seconds: lag.as_secs_f64(),
            lag_alert: lag_bytes > self.config.lag_alert_bytes || lag > self.config.lag_alert,
            unprotected: state.mode == Mode::Synchronous && partner.lone,
            records_sent: partner.records_sent,
            record_bytes_sent: partner.record_bytes_sent,
            heard_ms: partner.heard_ms,
            lost_ms: if is_away { partner.lost_ms } else { 0 },
            last_error: partner.last_error.clone(),
            verified: state.verified.clone(),
        }
    }
}
