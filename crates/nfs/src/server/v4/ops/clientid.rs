//! SETCLIENTID, SETCLIENTID_CONFIRM, RENEW. Spec: RFC 7530 16.33, 16.34, 16.30.

use weft_wire::nfs4::{Confirm, NetAddr, Setclientid, Status, Text};

use super::super::close::give_up;
use super::super::compound::Compound;
use super::super::state::Callback;

/// `Err(Ok(_))`: who uses the name (NFS4ERR_CLID_INUSE).
pub fn setclientid(c: &Compound<'_>, args: &Setclientid) -> Result<Confirm, Result<NetAddr, Status>> {
    let NetAddr { netid, addr } = &args.callback.location;
    // Copies: slices would keep the receive buffer that the call came in.
    let copy = |text: &Text| Text(bytes::Bytes::copy_from_slice(&text.0));
    let location = NetAddr { netid: copy(netid), addr: copy(addr) };
    let callback = Callback { program: args.callback.program, ident: args.callback_ident, location };
    c.cx.server.states.setclientid(&args.client, callback, c.principal, c.now)
}

pub async fn confirm(c: &Compound<'_>, args: &Confirm) -> Result<(), Status> {
    let taken = c.cx.server.states.setclientid_confirm(args, c.principal, c.now)?;
    give_up(c.cx.server, taken).await;
    Ok(())
}

pub fn renew(c: &Compound<'_>, client: u64) -> Result<(), Status> {
    c.client(client).map(drop)
}
