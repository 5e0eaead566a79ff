//! The security flavors of an export, from its server.
//!
//! See RFC 8881 2.6.3 and 18.29 (SECINFO), 18.45 (SECINFO_NO_NAME). Both may be asked with any flavor.

use std::rc::Rc;

use weft_transport::Channel;
use weft_wire::nfs4::{Op, Secinfo, SecinfoOk, Status};
use weft_wire::rpc::Flavor;
use weft_wire::rpc::gss::Service;

use super::opened::skip;
use super::session::{Client, Keep, NFS};
use super::walk::names;
use crate::client::connections::Connections;
use crate::client::rpc::{Cargo, Rpc};
use crate::client::{Error, Options};

/// 1.2.840.113554.1.2.2, Kerberos.
const KRB5: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02";
/// The object whose flavors SECINFO_NO_NAME tells: the current one.
const CURRENT: u32 = 0;
/// Longest path below which an export is looked for; each name costs a request.
const MAX_NAMES: usize = 16;

/// The flavors that the export at `path` accepts, best first, over a channel that answers NFS.
///
/// # Errors
/// As those of [`Mount::connect`](super::Mount::connect).
pub async fn offered(channel: Rc<dyn Channel>, path: &str, options: Options) -> Result<Vec<Flavor>, Error> {
    let Options { credential, pool } = options;
    let rpc = Rpc::new(channel, credential.clone());
    let client = Client::new(Connections::one(&rpc, credential), pool)?;
    let offered = flavors(&client, path).await;
    // A server that does not end the client does so after the lease.
    if let Err(e) = client.end().await {
        tracing::debug!("the client was not ended: {e}");
    }
    client.connections.end_context(NFS).await;
    offered
}

/// The flavors of the object at `path`, or those of the first object on the way that refuses ours.
pub(super) async fn flavors(client: &Client, path: &str) -> Result<Vec<Flavor>, Error> {
    let names = names(path)?;
    let mut found = match names.is_empty() {
        true => told(client, &[Op::Putrootfh], Op::SecinfoNoName(CURRENT)).await?,
        false => Vec::new(),
    };
    let mut walk = vec![Op::Putrootfh];
    for name in names.into_iter().take(MAX_NAMES) {
        match told(client, &walk, Op::Secinfo(name.clone())).await {
            Ok(flavors) => found = flavors,
            Err(Error::Status4(Status::WRONGSEC)) if walk.len() == 1 => {
                return told(client, &walk, Op::SecinfoNoName(CURRENT)).await;
            }
            // The object before this one refuses us.
            Err(Error::Status4(Status::WRONGSEC)) => break,
            Err(e) => return Err(e),
        }
        walk.push(Op::Lookup(name));
    }
    Ok(found)
}

async fn told(client: &Client, walk: &[Op], ask: Op) -> Result<Vec<Flavor>, Error> {
    let number = ask.number();
    let ops = || [walk, std::slice::from_ref(&ask)].concat();
    let mut results = client.run(ops, Keep::No, None, Cargo::default()).await?;
    skip(&mut results, walk)?;
    let flavors: SecinfoOk = results.ok(number)?;
    Ok(flavors.0.iter().filter_map(flavor).collect())
}

/// The flavor as MOUNT would tell it; `None` for another mechanism than Kerberos.
fn flavor(told: &Secinfo) -> Option<Flavor> {
    match told {
        Secinfo::Flavor(flavor) => Some(*flavor),
        Secinfo::Gss(mechanism, _, service) if &mechanism[..] == KRB5 => match service {
            service if *service == Service::None.number() => Some(Flavor::KRB5),
            service if *service == Service::Integrity.number() => Some(Flavor::KRB5I),
            service if *service == Service::Privacy.number() => Some(Flavor::KRB5P),
            _ => None,
        },
        Secinfo::Gss(..) => None,
    }
}
