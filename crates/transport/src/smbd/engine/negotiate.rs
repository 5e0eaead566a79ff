//! The Negotiate messages of both sides, and the parameters derived from them.
//!
//! It implements [MS-SMBD] 3.1.5.2, 3.1.5.3, 3.1.5.6 and 3.1.5.7.

use weft_machine::Time;
use weft_machine::buf::MAX_BUF;
use weft_wire::smbd::{NegotiateRequest, NegotiateResponse, VERSION};

use super::super::config::{MIN_FRAGMENTED, MIN_RECEIVE};
use super::{Engine, FIRST_GRANT, FIRST_MESSAGE_LIMIT, Output, Phase, control, malformed};
use crate::channel::Ending;

impl Engine {
    /// 3.1.5.2.
    pub(super) fn negotiate_request(&mut self) -> Output {
        let mut bytes = Vec::with_capacity(NegotiateRequest::LEN);
        NegotiateRequest {
            min_version: VERSION,
            max_version: VERSION,
            credits_requested: self.config.send_credits,
            preferred_send_size: self.config.max_send_size,
            max_receive_size: self.config.max_receive_size,
            max_fragmented_size: self.config.max_fragmented_size,
        }
        .emit(&mut bytes);
        control(bytes)
    }

    /// 3.1.5.3.
    pub(super) fn negotiate_response(&mut self) -> Output {
        self.granted = self.posted.min(self.credit_ceiling());
        let mut bytes = Vec::with_capacity(NegotiateResponse::LEN);
        NegotiateResponse {
            min_version: VERSION,
            max_version: VERSION,
            negotiated_version: VERSION,
            credits_requested: self.config.send_credits,
            credits_granted: self.granted as u16,
            status: 0,
            max_read_write_size: self.config.max_read_write_size,
            preferred_send_size: self.max_send as u32,
            max_receive_size: self.max_receive as u32,
            max_fragmented_size: self.config.max_fragmented_size,
        }
        .emit(&mut bytes);
        control(bytes)
    }

    /// 3.1.5.6.
    pub(super) fn received_request(&mut self, message: &[u8], now: Time) -> Result<(), Ending> {
        let request = NegotiateRequest::parse(message).map_err(malformed)?;
        if !(request.min_version..=request.max_version).contains(&VERSION) {
            self.phase = Phase::Refusing;
            return Ok(());
        }
        if request.credits_requested == 0 {
            return Err(Ending::Violation("[MS-SMBD] 3.1.5.6: CreditsRequested is zero"));
        }
        self.agree(
            request.preferred_send_size,
            request.max_receive_size,
            request.max_fragmented_size,
            request.credits_requested,
            now,
        )?;
        self.first_due = Some(now + FIRST_MESSAGE_LIMIT);
        self.phase = Phase::Answering;
        Ok(())
    }

    /// 3.1.5.7.
    pub(super) fn received_response(&mut self, message: &[u8], now: Time) -> Result<(), Ending> {
        let response = NegotiateResponse::parse(message).map_err(malformed)?;
        if response.status != 0 {
            return Err(Ending::Violation("[MS-SMBD] 3.1.5.7: the peer refused to negotiate"));
        }
        if response.negotiated_version != VERSION {
            return Err(Ending::Violation("[MS-SMBD] 3.1.5.7: NegotiatedVersion is not 1.0"));
        }
        if response.credits_granted == 0 || response.credits_requested == 0 {
            return Err(Ending::Violation("[MS-SMBD] 3.1.5.7: no credits requested or granted"));
        }
        if response.preferred_send_size as usize > self.max_receive {
            return Err(Ending::Violation("[MS-SMBD] 3.1.5.7: PreferredSendSize exceeds our receives"));
        }
        self.agree(
            response.preferred_send_size,
            response.max_receive_size,
            response.max_fragmented_size,
            response.credits_requested,
            now,
        )?;
        self.max_read_write = self.max_read_write.min(response.max_read_write_size as usize);
        self.send_credits = response.credits_granted.into();
        self.first_grant = Some(now + FIRST_GRANT);
        self.phase = Phase::Established;
        Ok(())
    }

    /// Derives the parameters from the other side's sizes.
    fn agree(
        &mut self,
        preferred: u32,
        receive: u32,
        fragmented: u32,
        credits: u16,
        now: Time,
    ) -> Result<(), Ending> {
        if receive < MIN_RECEIVE {
            return Err(Ending::Violation("[MS-SMBD] 3.1.5.6: MaxReceiveSize below 128"));
        }
        if fragmented < MIN_FRAGMENTED {
            return Err(Ending::Violation("[MS-SMBD] 3.1.5.6: MaxFragmentedSize below 131072"));
        }
        self.max_receive = self.max_receive.min(preferred.max(MIN_RECEIVE) as usize);
        self.max_send = self.max_send.min(receive as usize);
        self.max_fragmented_send = (fragmented as usize).min(MAX_BUF);
        self.target = credits.into();
        self.deadline = now + self.config.keepalive_interval;
        Ok(())
    }
}
