//! A log-on or mount with its time limit; when none comes about, asks what the port speaks instead.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use weft_machine::rt;

use super::dial::{Dial, Medium};
use super::probe::{self, Spoken};
use super::reach;
use crate::Failure;
use crate::out::{ShellCommand, shell_word};
use crate::url::{Scheme, Url, escaped};

/// How long a connected server may take to let a client in: it may have to ask domain controllers. If a port does not
/// answer, probing what it speaks happens within this limit.
const LOGON_LIMIT: Duration = Duration::from_secs(20);
/// A port that stays silent for this long is probed while we keep waiting.
const LOOK_AFTER: Duration = Duration::from_millis(700);
/// Time limit of that probe.
const LOOK_LIMIT: Duration = Duration::from_millis(1500);

/// A log-on or mount over a connection to `addr`, with the time limit common to both, because the layers below have
/// none. A server that answers late or wrongly is probed; so is `mountd` if it is asked over TCP.
pub(super) async fn let_in<T>(
    dial: &Dial<'_>,
    medium: Medium,
    addr: SocketAddr,
    mountd: Option<SocketAddr>,
    step: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let language = match dial.url.scheme {
        Scheme::Smb => Language::Smb,
        Scheme::Nfs => Language::Nfs,
    };
    let whom = format!("{} at {}", language.name(), reach::authority(&dial.url.host, addr.port()));
    // Large futures; a benchmark's threads would otherwise hold several of them on their stacks.
    let step = Box::pin(step);
    let served = (medium == Medium::Tcp).then_some(Asked { addr, language });
    let mountd = mountd.map(|addr| Asked { addr, language: Language::Mount });
    let ports: Vec<Asked> = served.into_iter().chain(mountd).collect();
    if ports.is_empty() {
        return reach::patiently_until(dial.until, LOGON_LIMIT, whom, step).await;
    }
    let looked_at = async {
        let mut step = pin!(reach::within(LOGON_LIMIT.saturating_sub(LOOK_LIMIT), &whom, step));
        let answered = match rt::timeout(LOOK_AFTER, &mut step).await {
            Ok(answered) => answered,
            // Some protocols wait for the remainder of what they take for a long message. A slow server speaks its
            // protocol correctly.
            Err(_) => match select(step, Box::pin(other_language(dial.url, &ports))).await {
                Either::Left((answered, _)) => answered,
                Either::Right((Some(wrong), _)) => return Err(wrong.into()),
                Either::Right((None, step)) => step.await,
            },
        };
        match answered {
            Err(e) => Err(Box::pin(explained(dial.url, &ports, e)).await),
            done => done,
        }
    };
    reach::patiently_until(dial.until, LOGON_LIMIT, &whom, Box::pin(looked_at)).await
}

/// A TCP port that a log-on or mount uses, and the language it should speak.
#[derive(Clone, Copy, Debug)]
struct Asked {
    addr: SocketAddr,
    language: Language,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Smb,
    Nfs,
    /// MOUNT on its own port.
    Mount,
}

impl Language {
    fn name(self) -> &'static str {
        match self {
            Language::Smb => "SMB",
            Language::Nfs => "NFS",
            Language::Mount => "MOUNT",
        }
    }

    fn is(self, spoken: &Spoken) -> bool {
        match self {
            Language::Smb => *spoken == Spoken::Smb,
            Language::Nfs => *spoken == Spoken::Nfs,
            // Weft answers both protocols on one port.
            Language::Mount => matches!(spoken, Spoken::Rpc | Spoken::Nfs),
        }
    }
}

/// The ports that speak another protocol than they should, or misbehave.
async fn otherwise(ports: &[Asked]) -> impl Iterator<Item = (Asked, Spoken)> {
    let looks = ports.iter().map(async |asked| {
        let spoken = rt::timeout(LOOK_LIMIT, probe::probe(asked.addr)).await.ok();
        spoken.filter(|spoken| !asked.language.is(spoken)).map(|spoken| (*asked, spoken))
    });
    join_all(looks).await.into_iter().flatten()
}

/// What is wrong with a port that speaks another protocol; `None` if no such port is known.
async fn other_language(url: &Url, ports: &[Asked]) -> Option<String> {
    let known = |spoken: &Spoken| !matches!(spoken, Spoken::Silent | Spoken::Closes | Spoken::Gone);
    let mut otherwise = otherwise(ports).await;
    otherwise.find(|(_, spoken)| known(spoken)).map(|(asked, spoken)| told_of(url, asked, &spoken, ""))
}

/// Explains why no session or mount came about: if the server did not answer as it should, says what the port speaks.
async fn explained(url: &Url, ports: &[Asked], failure: Failure) -> Failure {
    let answered = failure.downcast_ref::<weft_smb::client::Error>().is_some_and(|e| match e {
        weft_smb::client::Error::Malformed(_) => false,
        e => !e.is_loss(),
    }) || failure.downcast_ref::<weft_nfs::client::Error>().is_some_and(|e| {
        !matches!(
            e,
            weft_nfs::client::Error::Channel(_)
                | weft_nfs::client::Error::Malformed(_)
                | weft_nfs::client::Error::Late(_)
        )
    });
    if answered {
        return failure;
    }
    let wrong = otherwise(ports).await.next();
    match wrong {
        Some((asked, spoken)) => told_of(url, asked, &spoken, &failure.to_string()).into(),
        None => failure,
    }
}

/// The sentence for a port that does not speak what it should, and what to type.
fn told_of(url: &Url, asked: Asked, spoken: &Spoken, failure: &str) -> String {
    let (object, share) = (reach::authority(&url.host, asked.addr.port()), escaped(&url.share, ""));
    let other = asked.language.name();
    let named = match asked.language {
        Language::Mount => "name the port of MOUNT as ?mountport=N (weft serve: --mountd-port)".to_owned(),
        _ => format!("name the port of {other}"),
    };
    let found = match spoken {
        Spoken::Smb if asked.language == Language::Mount => format!("speaks SMB, not {other}; {named}"),
        Spoken::Smb => {
            format!("speaks SMB, not {other}; try {}", shell_word(format!("smb://USER@{object}/{share}")))
        }
        Spoken::Nfs => {
            format!("speaks NFS, not {other}; try {}", shell_word(format!("nfs://{object}/{share}")))
        }
        Spoken::Rpc => format!(
            "speaks ONC RPC, but not NFS; name the port of NFS, or this one as {}",
            match url.scheme {
                Scheme::Nfs => "?mountport=N",
                Scheme::Smb => "nfs://HOST:PORT/EXPORT?mountport=N",
            }
        ),
        Spoken::Rdma => format!(
            "is an RDMA port; name the TCP port of {other} (in a URL, the RDMA port is ?rdmaport={})",
            asked.addr.port()
        ),
        Spoken::Nbd => format!(
            "speaks NBD, not {other}; connect with an NBD client: {}",
            ShellCommand::new("nbdinfo").operand(format!("nbd://{object}"))
        ),
        Spoken::Other(name) => format!("speaks {name}, not {other}; {named}"),
        Spoken::Silent => format!(
            "accepts connections but does not answer; is it the port of {other}, or does the server hang?"
        ),
        Spoken::Closes => format!(
            "accepts connections and closes them without an answer; is it the port of {other}, and may this host use it?"
        ),
        Spoken::Gone => format!("no longer accepts connections ({failure})"),
    };
    format!("{object} {found}")
}
