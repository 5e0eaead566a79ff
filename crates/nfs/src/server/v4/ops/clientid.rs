//! SETCLIENTID, SETCLIENTID_CONFIRM and RENEW (RFC 7530 16.33, 16.34, 16.30).

use std::sync::atomic::Ordering;

use weft_wire::nfs4::{Confirm, NetAddr, Setclientid, Status, Text};
use weft_wire::rpc::{AuthSys, Credential};

use super::super::close::give_up;
use super::super::compound::Compound;
use super::super::dial;
use super::super::state::back::Route;
use super::super::state::{Back, Callback};

/// `Err(Ok(_))`: the address that uses the name (NFS4ERR_CLID_INUSE).
pub fn setclientid(c: &Compound<'_>, args: &Setclientid) -> Result<Confirm, Result<NetAddr, Status>> {
    let NetAddr { netid, addr } = &args.callback.location;
    // Copies, because slices would keep the call's whole receive buffer in use.
    let copy = |text: &Text| Text(bytes::Bytes::copy_from_slice(&text.0));
    let location = NetAddr { netid: copy(netid), addr: copy(addr) };
    let callback = Callback { program: args.callback.program, ident: args.callback_ident, location };
    c.cx.server.states.setclientid(&args.client, callback, &c.identity().map_err(Err)?, c.now)
}

pub async fn confirm(c: &Compound<'_>, args: &Confirm) -> Result<(), Status> {
    let taken = c.cx.server.states.setclientid_confirm(args, &c.identity()?, c.now)?;
    give_up(taken).await;
    call_back(c, args.client);
    Ok(())
}

/// The client has announced its callback address, perhaps a new one.
fn call_back(c: &Compound<'_>, client: u64) {
    let Ok(client) = c.client(client) else { return };
    let (back, location) = {
        let Some(mut mine) = client.living() else { return };
        let Some(Callback { program, ident, location }) = mine.callback.take() else { return };
        // RFC 7530 3.4: Linux clients answer only CB_NULL if the credential names no user.
        let credential = Credential::Sys(AuthSys::new(bytes::Bytes::from_static(b"weft"), 0, 0));
        let route = Route { program, credential, ident, minor: 0 };
        let back = mine.back.get_or_insert_with(|| Back::new(None, 0, route.clone())).clone();
        back.change(route.program, route.credential, route.ident);
        mine.callback = Some(Callback { program, ident, location: location.clone() });
        (back, location)
    };
    back.unbind();
    if let Some(address) = dial::address(&location, c.cx.peer) {
        let Some(permit) = c.cx.server.back_channels.enter(address.ip()) else {
            return tracing::debug!(%address, "limit reached: back channels to a host");
        };
        let asks = std::sync::Arc::downgrade(&client);
        dial::dial(&back, address, c.cx.server.pool.clone(), permit, move || {
            if let Some(client) = asks.upgrade() {
                client.ask_again();
            }
        });
    }
}

pub fn renew(c: &Compound<'_>, client: u64) -> Result<(), Status> {
    let client = c.client(client)?;
    // RFC 7530 16.30.5: the client should return what cannot be recalled.
    let down = || !client.back().is_some_and(|back| back.is_up());
    if client.lease.delegations.load(Ordering::Acquire) != 0 && down() {
        return Err(Status::CB_PATH_DOWN);
    }
    Ok(())
}
