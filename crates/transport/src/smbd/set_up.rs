//! Set-up of SMB Direct connections, and the read depths in iWARP private data.
//!
//! It implements [MS-SMBD] 3.1.4.1, 3.1.7.2 and section 6. The caller listens and chooses the provider.

use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use weft_machine::{Buf, Pool};
use weft_rdma::{ConnectParams, Provider, QueuePair, Request, Work};
use weft_wire::smbd::ReadDepths;

use super::channel::Smbd;
use super::config::Config;
use super::driver;
use super::engine::Role;
use crate::channel::Error;

/// RDMA Reads at a time, in each direction, that we agree to with a peer that sends its depths in private data.
const READ_DEPTH: u32 = 16;

/// Connects to `addr` over `provider` and negotiates. Fails within the time limits of the provider and of
/// [`engine::ACTIVE_NEGOTIATION`](super::engine::ACTIVE_NEGOTIATION).
pub async fn connect(
    provider: &dyn Provider,
    addr: SocketAddr,
    config: Config,
    pool: Pool,
) -> Result<Rc<Smbd>, Error> {
    let config = config.clamped();
    // The provider negotiates read depths by RFC 6581; section 6 is for providers that do not.
    let (queue_pair, _) = provider.connect(addr, ConnectParams::default()).await?;
    Smbd::negotiate(driver::start(queue_pair, Role::Active, config, pool, 0)).await
}

/// Accepts a connection request and negotiates. Fails if the peer stays silent for
/// [`engine::PASSIVE_NEGOTIATION`](super::engine::PASSIVE_NEGOTIATION).
pub async fn accept(request: Box<dyn Request>, config: Config, pool: Pool) -> Result<Rc<Smbd>, Error> {
    let config = config.clamped();
    let params = match answer_depths(request.private_data()) {
        Ok(params) => params,
        Err(what) => {
            request.reject(Bytes::new()).await?;
            return Err(Error::Violation(what));
        }
    };
    let first = first_receive(pool.alloc(config.max_receive_size as usize).await);
    let queue_pair = request.accept(params, vec![first]).await?;
    passive(queue_pair, config, pool).await
}

/// The receive to post before a connection is accepted, of `max_receive_size`.
pub(crate) fn first_receive(buf: Buf) -> Work {
    driver::receive(buf)
}

/// Negotiates on an accepted queue pair that has [`first_receive`].
pub(crate) async fn passive(
    queue_pair: Rc<dyn QueuePair>,
    config: Config,
    pool: Pool,
) -> Result<Rc<Smbd>, Error> {
    Smbd::negotiate(driver::start(queue_pair, Role::Passive, config, pool, 1)).await
}

/// The parameters of our acceptance, with an IRD/ORD header if the peer's request began with one (section 6.2).
fn answer_depths(private_data: &[u8]) -> Result<ConnectParams, &'static str> {
    if private_data.len() < ReadDepths::LEN {
        return Ok(ConnectParams::default());
    }
    let asked = ReadDepths::parse(private_data).map_err(|_| "[MS-SMBD] 6.1: IRD or ORD is zero")?;
    let agreed = ReadDepths { ird: asked.ird.min(READ_DEPTH), ord: asked.ord.min(READ_DEPTH), ..asked };
    Ok(ConnectParams {
        private_data: Bytes::copy_from_slice(&agreed.emit()),
        // The header is from the connecting side's view: what it can serve is what we may request.
        ird: agreed.ord as u16,
        ord: agreed.ird as u16,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_without_private_data_gets_none() {
        for private_data in [&[][..], &[1, 2, 3, 4, 5, 6, 7]] {
            let params = answer_depths(private_data).unwrap();
            assert!(params.private_data.is_empty());
            assert_eq!((params.ird, params.ord), (0, 0));
        }
    }

    #[test]
    fn new_linux_sends_its_read_depths_in_network_order() {
        let params = answer_depths(&[0, 0, 0, 32, 0, 0, 0, 1]).unwrap();
        assert_eq!(params.private_data[..], [0, 0, 0, 16, 0, 0, 0, 1]);
        assert_eq!((params.ird, params.ord), (1, 16));
    }

    #[test]
    fn old_cifs_sends_its_read_depths_little_endian() {
        let params = answer_depths(&[8, 0, 0, 0, 1, 0, 0, 0, 0xff]).unwrap();
        assert_eq!(params.private_data[..], [8, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!((params.ird, params.ord), (1, 8));
    }

    #[test]
    fn read_depths_of_zero_are_rejected() {
        assert!(answer_depths(&[0; 8]).is_err());
        assert!(answer_depths(&[0, 0, 0, 0, 0, 0, 0, 1]).is_err());
    }
}
