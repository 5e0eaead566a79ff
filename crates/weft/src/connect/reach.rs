//! Reaching a host: tries its addresses in turn, with waits that are limited and announced.
//!
//! RFC 8305 section 4 (families take turns) and 5 (attempts overlap).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use weft_machine::{Time, rt};

use crate::Failure;
use crate::misuse::Misuse;

/// How long an attempt runs alone before the next address is tried as well (RFC 8305 section 8).
pub(crate) const STAGGER: Duration = Duration::from_millis(250);
/// Longer waits are announced.
const UNTOLD: Duration = Duration::from_secs(2);
/// Limit for the system's resolver: its defaults allow three name servers that do not answer.
const RESOLVE_LIMIT: Duration = Duration::from_secs(15);

/// The addresses of a host, in the order in which they are tried.
pub(crate) async fn resolve(host: &str) -> Result<Vec<IpAddr>, Failure> {
    if let Ok(ip) = host.parse() {
        return Ok(vec![ip]);
    }
    if let Some((address, zone)) = host.split_once('%')
        && address.parse::<Ipv6Addr>().is_ok()
    {
        return Err(Misuse::new(format!(
            "{host} is a link-local address ({zone}), which weft does not connect to: use the host's name or another address"
        ))
        .into());
    }
    let name = host.to_owned();
    let asked = async {
        // The resolver ignores the port.
        let found = rt::blocking(move || (name.as_str(), 0).to_socket_addrs().map(Vec::from_iter)).await;
        let advice = "is the name spelled correctly? You can also use an IP address";
        Ok(found.map_err(|e| format!("{host}: {e} ({advice})"))?)
    };
    let found = patiently(RESOLVE_LIMIT, format_args!("the address of {host}"), asked).await?;
    match interleaved(found.into_iter().map(|addr| addr.ip())) {
        none if none.is_empty() => Err(format!("{host} has no address").into()),
        found => Ok(found),
    }
}

/// Whether an address belongs to this host in its network namespace: then the kernel uses it as source address for
/// itself.
pub(crate) fn is_local(ip: IpAddr) -> bool {
    let any =
        if ip.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        // This sends nothing; connecting a datagram socket needs some port.
        socket.connect((ip, 9))?;
        socket.local_addr()
    });
    ip.is_loopback() || source.is_ok_and(|source| source.ip() == ip)
}

/// In the resolver's order, but alternating between families, so that a broken family costs little (RFC 8305 section
/// 4).
pub(crate) fn interleaved(found: impl IntoIterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = Vec::new();
    for ip in found {
        if !all.contains(&ip) {
            all.push(ip);
        }
    }
    let first_is_v6 = all.first().is_some_and(IpAddr::is_ipv6);
    let (ours, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|ip| ip.is_ipv6() == first_is_v6);
    let (mut ours, mut others) = (ours.into_iter(), others.into_iter());
    let mut turns = Vec::new();
    loop {
        let pair = [ours.next(), others.next()];
        if pair == [None, None] {
            return turns;
        }
        turns.extend(pair.into_iter().flatten());
    }
}

/// Tries the addresses, starting the next one when the last attempt fails or is slow. The first success wins and
/// cancels the others. The error contains every attempt's result.
pub(crate) async fn first<T, E>(
    addresses: &[SocketAddr],
    attempt: impl AsyncFn(SocketAddr) -> Result<T, E>,
) -> Result<(SocketAddr, T), Vec<(SocketAddr, E)>> {
    let mut waiting = addresses.iter().copied();
    let mut running = FuturesUnordered::new();
    let mut failed = Vec::new();
    loop {
        match waiting.next() {
            Some(addr) => {
                let attempt = &attempt;
                running.push(async move { (addr, attempt(addr).await) });
            }
            None if running.is_empty() => return Err(failed),
            None => {}
        }
        let until_next = async {
            match waiting.len() {
                0 => std::future::pending().await,
                _ => rt::sleep(STAGGER).await,
            }
        };
        match select(running.next(), pin!(until_next)).await {
            Either::Left((Some((addr, Ok(done))), _)) => return Ok((addr, done)),
            Either::Left((Some((addr, Err(e))), _)) => failed.push((addr, e)),
            Either::Left((None, _)) | Either::Right(_) => {}
        }
    }
}

/// All attempts as one sentence: the error of each address, or the error they share.
pub(crate) fn told<E: fmt::Display>(host: &str, port: u16, failed: &[(SocketAddr, E)]) -> String {
    // Some errors name the address, which is already in the sentence.
    let without = |(addr, e): &(SocketAddr, E)| {
        let text = e.to_string();
        text.strip_prefix(&format!("{addr}: ")).map_or(text.clone(), str::to_owned)
    };
    let errors: Vec<String> = failed.iter().map(without).collect();
    let object = authority(host, port);
    let Some(first) = errors.first() else { return format!("{object}: no address to try") };
    if errors.iter().any(|e| e != first) {
        let each = failed.iter().zip(&errors).map(|((addr, _), e)| format!("{e} at {}", addr.ip()));
        let each: Vec<String> = each.collect();
        return format!("{object}: {}", each.join(", "));
    }
    let tried: Vec<String> = failed.iter().map(|(addr, _)| addr.ip().to_string()).collect();
    match tried.len() == 1 && tried.first().is_some_and(|ip| ip == host) {
        true => format!("{object}: {first}"),
        false => format!("{object}: {first} (tried {})", tried.join(", ")),
    }
}

/// HOST:PORT, with brackets if needed.
pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Waits for a step with a time limit, and announces a long wait.
pub(crate) async fn patiently<T>(
    limit: Duration,
    what: impl fmt::Display,
    step: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    patiently_until(rt::now() + limit, limit, what, step).await
}

/// The same within a longer wait that its owner ends at `until`: no longer limit than that is announced.
pub(crate) async fn patiently_until<T>(
    until: Time,
    limit: Duration,
    what: impl fmt::Display,
    step: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut step = pin!(step);
    if let Ok(done) = rt::timeout(UNTOLD.min(limit), &mut step).await {
        return done;
    }
    let left = limit.saturating_sub(UNTOLD);
    if !left.is_zero() {
        let told = left.min(until.since(rt::now()));
        tracing::warn!("waiting for {what}, for {} s at most", told.as_secs());
        if let Ok(done) = rt::timeout(left, step).await {
            return done;
        }
    }
    Err(Late::new(limit, what).into())
}

/// Waits for a part of such a step; the step's owner announces the wait.
pub(crate) async fn within<T>(
    limit: Duration,
    what: impl fmt::Display,
    step: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    rt::timeout(limit, step).await.unwrap_or_else(|_| Err(Late::new(limit, what).into()))
}

/// The time limit has passed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Late(String);

impl Late {
    fn new(limit: Duration, what: impl fmt::Display) -> Late {
        Late(format!("no answer in {} s from {what}", limit.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use weft_machine::sim;

    use super::*;

    fn ips(list: &str) -> Vec<IpAddr> {
        list.split(' ').map(|ip| ip.parse().unwrap()).collect()
    }

    fn addresses(list: &str) -> Vec<SocketAddr> {
        ips(list).into_iter().map(|ip| SocketAddr::new(ip, 445)).collect()
    }

    #[test]
    fn families_take_turns_and_the_resolver_says_which_is_first() {
        assert_eq!(
            interleaved(ips("2001:db8::1 2001:db8::2 2001:db8::1 192.0.2.1 192.0.2.2 192.0.2.3")),
            ips("2001:db8::1 192.0.2.1 2001:db8::2 192.0.2.2 192.0.2.3")
        );
        assert_eq!(interleaved(ips("192.0.2.1 ::1 192.0.2.2")), ips("192.0.2.1 ::1 192.0.2.2"));
        assert_eq!(interleaved([]), ips("::1")[..0]);
    }

    /// Runs `first` with scripted addresses: each answers after some milliseconds. Returns the result, and when each
    /// was tried.
    fn race(answers: &'static [(u64, Result<(), &'static str>)]) -> (String, Vec<(u64, String)>) {
        sim::Sim::new(1).run(async move {
            let all = addresses("2001:db8::1 192.0.2.1 2001:db8::2");
            let (tried, begin) = (RefCell::new(Vec::new()), rt::now());
            let won = first(&all, async |addr| {
                let i = all.iter().position(|one| *one == addr).unwrap();
                tried.borrow_mut().push(((rt::now() - begin).as_millis() as u64, addr.ip().to_string()));
                rt::sleep(Duration::from_millis(answers[i].0)).await;
                answers[i].1
            })
            .await;
            let outcome = match won {
                Ok((addr, ())) => addr.ip().to_string(),
                Err(failed) => told("nas", 445, &failed),
            };
            (outcome, tried.into_inner())
        })
    }

    #[test]
    fn one_that_does_not_answer_is_overtaken() {
        let (won, tried) = race(&[(60_000, Ok(())), (30, Ok(())), (0, Ok(()))]);
        assert_eq!(won, "192.0.2.1");
        assert_eq!(tried, [(0, "2001:db8::1".into()), (250, "192.0.2.1".into())]);
    }

    #[test]
    fn one_that_refuses_is_not_waited_for() {
        let (won, tried) = race(&[(5, Err("refused")), (20, Err("refused")), (1, Ok(()))]);
        assert_eq!(won, "2001:db8::2");
        assert_eq!(tried.last(), Some(&(25, "2001:db8::2".into())));
    }

    #[test]
    fn a_failure_names_what_was_tried() {
        let (same, _) = race(&[(1, Err("refused")), (1, Err("refused")), (1, Err("refused"))]);
        assert_eq!(same, "nas:445: refused (tried 2001:db8::1, 192.0.2.1, 2001:db8::2)");
        let (each, _) = race(&[(1, Err("refused")), (9, Err("no route")), (1, Err("refused"))]);
        assert_eq!(each, "nas:445: refused at 2001:db8::1, no route at 192.0.2.1, refused at 2001:db8::2");
        let only = [("192.0.2.1:445".parse().unwrap(), "refused")];
        assert_eq!(told("192.0.2.1", 445, &only), "192.0.2.1:445: refused");
        let named = [("192.0.2.1:445".parse().unwrap(), "192.0.2.1:445: No route to host")];
        assert_eq!(told("192.0.2.1", 445, &named), "192.0.2.1:445: No route to host");
        assert_eq!(authority("::1", 445), "[::1]:445");
    }

    #[test]
    fn a_wait_has_an_end() {
        sim::Sim::new(1).run(async {
            let begin = rt::now();
            let never = std::future::pending::<Result<(), Failure>>();
            let late = patiently(Duration::from_secs(7), "the server", never).await.unwrap_err();
            assert_eq!(late.to_string(), "no answer in 7 s from the server");
            assert_eq!((rt::now() - begin).as_secs(), 7);
            assert!(patiently(Duration::from_secs(7), "it", async { Ok(()) }).await.is_ok());
        });
    }
}
