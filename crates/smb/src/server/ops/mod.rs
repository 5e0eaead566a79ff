//! Operations on files: one file per command.
//!
//! Spec: [MS-SMB2] 3.3.5.9 to 3.3.5.22; the object store's part is in [MS-FSA] 2.1.5. Owns the opens of a session (see
//! [`Opens`]). The core signs, encrypts, counts credits and walks compounds.
//!
//! Each operation parses its request, finds its open, calls the store and emits its answer; only the open itself is
//! borrowed across an await. Payload is never copied here: READ answers with a range of the file, WRITE passes the
//! store slices of the message or what the transport fetched.

mod afp_streams;
mod ahead;
mod attributes;
mod audit;
mod caching;
mod caching_rights;
mod change_notify;
mod channel_sequence;
mod close;
mod control_output;
mod copyfile;
mod create;
mod durability;
mod durable;
mod ea;
mod flush;
mod granting;
mod handles;
mod holes;
mod instances;
mod ioctl;
mod judged;
mod lease;
mod lock;
mod lock_sequences;
mod mac;
mod namespace;
mod notify;
mod offload;
mod opens;
mod oplock_break;
mod outstanding;
mod owned_open;
mod path;
mod pattern;
mod persistent;
mod previous;
mod query_directory;
mod query_info;
mod read;
mod recalls;
mod recording;
mod reparse;
mod reparse_tag;
mod replay;
mod resolve;
mod restore;
mod rights;
mod scan;
mod security;
mod server_copy;
mod set_info;
mod status;
mod symlink;
mod tunnel;
mod visibility;
mod volume;
mod write;

use weft_machine::recorder;
use weft_wire::smb2::{Command, NtStatus};

pub(crate) use self::handles::Handles;
pub(super) use self::ioctl::ioctl;
pub(crate) use self::opens::{Open, Opens};
pub(crate) use self::outstanding::Outstanding;
pub(crate) use self::read::{read, try_read};
pub(crate) use self::restore::{restore, restore_on};
pub(crate) use self::write::{try_write, write};
use super::answer::Answer;
use super::context::OpContext;
use super::pipes;

/// Executes CREATE to OPLOCK_BREAK.
pub(crate) async fn dispatch(cx: &OpContext) -> Answer {
    if cx.tree().share.is_none() {
        // Pipes wait for their writers on purpose.
        recorder::hide();
        return Box::pin(pipes::dispatch(cx)).await;
    }
    match cx.header().command {
        // Most frequent first.
        Command::Read => match try_read(cx) {
            Some(answer) => answer,
            None => Box::pin(read(cx)).await,
        },
        Command::Write => write(cx).await,
        Command::Create => {
            let answer = Box::pin(create::create(cx)).await;
            if let Err(failure) = &answer
                && cx.config().offers.audit.is_on()
            {
                audit::refused(cx, failure.status);
            }
            answer
        }
        Command::Close => close::close(cx).await,
        Command::Flush => flush::flush(cx).await,
        Command::Lock => Box::pin(lock::lock(cx)).await,
        Command::Ioctl => Box::pin(ioctl(cx)).await,
        Command::QueryDirectory => Box::pin(query_directory::query_directory(cx)).await,
        Command::ChangeNotify => Box::pin(change_notify::change_notify(cx)).await,
        Command::QueryInfo => Box::pin(query_info::query_info(cx)).await,
        Command::SetInfo => Box::pin(set_info::set_info(cx)).await,
        Command::OplockBreak => oplock_break::oplock_break(cx).await,
        // The core handles the other commands; an unknown command code is an invalid parameter (3.3.5.2).
        _ => Err(NtStatus::INVALID_PARAMETER.into()),
    }
}

#[cfg(test)]
mod tests;
