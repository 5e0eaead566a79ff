//! This server as other servers name and reach it.

use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};

use weft_machine::rt;

use super::Replicas;
use super::config::Address;
use super::error::NoRoute;

/// The address at which the server `there` reaches this one: `return_host`, or the local address of the route
/// there.
pub(super) async fn way_back(
    replicas: &Replicas,
    there: &Address,
    return_host: Option<&str>,
) -> Result<Address, NoRoute> {
    let host = match return_host {
        Some(host) => host.to_owned(),
        None => {
            let to = (there.host.clone(), there.port);
            rt::blocking(move || own_address((&to.0, to.1))).await?
        }
    };
    Ok(Address {
        host,
        port: replicas.smb_port.get().copied().unwrap_or_default(),
        user: replicas.own.user.clone(),
        password: replicas.own.password.clone(),
        transport: there.transport,
        encrypt: there.encrypt,
        compress: there.compress,
    })
}

/// The local address of the route to another host; nothing is sent.
fn own_address(there: (&str, u16)) -> Result<String, NoRoute> {
    let found =
        there.to_socket_addrs().map_err(|source| NoRoute::Unresolved { host: there.0.to_owned(), source })?;
    let route = |to: SocketAddr| {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any)?;
        socket.connect(to)?;
        socket.local_addr()
    };
    let own = found.map(route).find_map(Result::ok);
    Ok(own.ok_or_else(|| NoRoute::Unreachable(there.0.to_owned()))?.ip().to_string())
}
