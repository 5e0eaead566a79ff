//! Answers a call of a file that the connection knows (see `familiar`), if it has to wait for nothing: no future, no parsing of
//! what was parsed before. Most of the traffic consists of READs and WRITEs, and a future for each would double their cost.
//!
//! `None`, with nothing done, is for everything that is not plain success: then `dispatch` carries the call out, and reports what
//! is to be reported. `ops::at_once` and `v4::at_once` have the procedures.

use bytes::Bytes;
use weft_machine::recorder::{self, AtOnce, Details, Operation};
use weft_machine::rt;
use weft_store::OpenFile;
use weft_transport::Message;
use weft_wire::nfs3::{VERSION, procedure as nfs};
use weft_wire::nfs4;

use super::context::{Connection, Node};
use super::familiar::Procedure;
use super::instead::Answer;
use super::meter::CallMeter;
use super::{ops, v4};

#[cfg(test)]
thread_local! {
    /// Number of calls that were answered at once.
    pub(super) static AT_ONCE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Carries out a call of this kind; its reply, and its operation for the flight recorder.
pub(super) fn at_once(connection: &Connection<'_>, message: &mut Message) -> Option<(Answer, Operation)> {
    let known = connection.familiar.find(&message.body)?;
    let is_current = connection.server.shares.is_current(&known.shares.list);
    // The audit log tells by whom and how a file was used.
    if !is_current || connection.server.auditing.get().is_some() || message.detached.is_some() {
        return None;
    }
    let (xid, arguments) =
        (message.body.first_chunk()?, message.body.get(4..)?.get(known.beginning.bytes.len()..)?);
    let xid = u32::from_be_bytes(*xid);
    let (version, minor, operation) = match &known.procedure {
        Procedure::Read3 => (VERSION, 0, nfs::READ),
        Procedure::Write3 => (VERSION, 0, nfs::WRITE),
        Procedure::Compound(compound) => (nfs4::VERSION, compound.minor, compound.operation),
    };
    if !matches!(known.procedure, Procedure::Write3) {
        *connection.written.borrow_mut() = None;
    }
    let meter = CallMeter::known(
        connection.kind,
        (version, operation),
        known.share.meter,
        message.ticket.takes_payload(),
    );
    let _current = AtOnce::begin(meter.what()?);
    let (answer, sent) = match &known.procedure {
        Procedure::Read3 => ops::at_once::read(connection, &known, xid, arguments)?,
        Procedure::Write3 => (ops::at_once::write(connection, &known, xid, arguments, message, &meter)?, 0),
        Procedure::Compound(compound) => {
            v4::at_once::compound(connection, &known, compound, xid, arguments, message, &meter)?
        }
    };
    #[cfg(test)]
    AT_ONCE.set(AT_ONCE.get() + 1);
    connection.watch.called_again(version, minor);
    meter.answered(sent);
    recorder::answered(|| Details {
        client: Some(connection.client.clone()),
        user: known.user.clone(),
        file: String::new(),
    });
    Some((answer.with(std::mem::take(&mut message.ticket)), Operation::current()))
}

impl Node<'_> {
    /// Whether nobody caches the folder of a file that is about to be written: they are to be told, which may have to wait.
    pub fn is_uncached(&self) -> Option<()> {
        (!self.share.vfs.opens().caches_directories()).then_some(())
    }

    /// Writes data. What has failed is written again, to the same place, and reported then.
    pub fn write_now(&self, file: &OpenFile, offset: u64, data: Bytes) -> Option<()> {
        file.write_now(offset, &[data])?.ok()?;
        if self.is_uncached().is_none() {
            // Somebody has begun to cache a folder meanwhile, and may have seen the old size.
            let (vfs, node) = (self.share.vfs.clone(), self.id);
            rt::spawn(async move { vfs.content_changed(node).await }).detach();
        }
        Some(())
    }
}
