//! A peer process that is killed while it writes.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use bytes::Bytes;
use weft_machine::{Pool, rt};
use weft_rdma::{Access, ConnectParams, Disconnect, Provider, Refusal, Segment, Stag, Work};

use crate::net::{End, FILL, Net, wait_until};

const REGION: usize = 4 << 20;

/// Kills the process, also when the test ends early.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        // It may be dead already, which is the purpose.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub async fn a_peer_that_dies_in_mid_write(net: &Net) {
    let quiet = net.pool.in_use_bytes();
    let listener = net.provider.listen(net.any_port()).await.unwrap();
    let victim = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "victim"])
        .env("WEFT_TEST_PARENT", std::process::id().to_string())
        .env("WEFT_TEST_PROVIDER", net.name)
        .env("WEFT_TEST_ADDR", listener.local_addr().to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut victim = Victim(victim);
    let request = listener.accept().await.unwrap().request().await.unwrap();
    let recvs = vec![Work::Recv { id: 0, buf: net.pool.try_alloc(16).unwrap() }];
    let qp = request.accept(ConnectParams::default(), recvs).await.unwrap();
    let server = End::new(qp, net.pool.clone(), net.medium);
    server.received(0).await;
    (1..=50).for_each(|id| server.recv(id, 4096));
    let (region, beside) =
        (server.region(REGION, Access::RemoteWrite), server.region(REGION, Access::RemoteWrite));
    // The victim learns where to write, and never stops.
    let told = [&region.stag.0.to_le_bytes()[..], &region.offset.to_le_bytes()].concat();
    server.send(100, &told);
    server.done(100).await;
    // It reports when it is writing; on shm nothing here would notice.
    server.received(1).await;
    victim.0.kill().unwrap();
    victim.0.wait().unwrap();

    let (completions, reason) = server.end().await;
    // A kernel may still report that the process is gone; our own provider dies with it.
    let said = Refusal::Other { layer: 0, etype: 0, code: 0xff };
    let fits =
        matches!(reason, Disconnect::Lost(_) | Disconnect::Peer) || reason == Disconnect::Terminated(said);
    assert!(fits, "{reason}");
    let ids: Vec<_> = completions.iter().filter(|c| c.result.is_err()).map(|c| c.id).collect();
    assert!(ids.iter().copied().eq(51 - ids.len() as u64..=50), "flushed in order: {ids:?}");
    // The bytes written come from the victim; those beside them are unchanged.
    let buf = server.qp.invalidate(region.stag).unwrap();
    assert_eq!(buf.len(), REGION);
    assert!(buf.iter().all(|byte| matches!(*byte, FILL | 0x5a)));
    let beside = server.qp.invalidate(beside.stag).unwrap();
    assert!(beside.iter().all(|byte| *byte == FILL));
    drop((completions, buf, beside, server));
    wait_until("all buffers are back in the pool", || net.pool.in_use_bytes() == quiet).await;
}

/// The child: connects to its parent and writes until it is killed.
pub fn victim() {
    // Run by anybody but its parent, there is nothing to do.
    let Ok(provider) = std::env::var("WEFT_TEST_PROVIDER") else { return };
    let addr: SocketAddr = std::env::var("WEFT_TEST_ADDR").unwrap().parse().unwrap();
    let pool = Pool::new(64 << 20);
    let kind = crate::kind(&provider);
    let provider: Rc<dyn Provider> = (kind.make_client)(pool.clone());
    rt::block_on(async {
        let (qp, _) = provider.connect(addr, ConnectParams::default()).await.unwrap();
        let end = End::new(qp, pool, (kind.medium)().unwrap());
        end.recv(1, 100);
        end.send(2, b"hello");
        let told = end.received(1).await;
        let region = Segment {
            stag: Stag(u32::from_le_bytes(told[..4].try_into().unwrap())),
            offset: u64::from_le_bytes(told[4..12].try_into().unwrap()),
            len: REGION as u32,
        };
        let data = Bytes::from(vec![0x5a; REGION]);
        end.write(3, data.clone(), region);
        end.send(4, b"writing");
        // Until it is killed; the parent may also have given up.
        for id in 5.. {
            end.write(id, data.clone(), region);
            if end.next().await.is_err() {
                break;
            }
        }
    })
    .unwrap();
}
