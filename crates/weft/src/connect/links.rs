//! DFS links: the path of a URL may lead to another share on another server.
//!
//! [MS-DFSC] 3.1.4.1, 3.1.5.1. This file maps paths through the links that were followed. Links deeper than the URL's
//! own path are not followed (copying a folder that contains links reports them and stops), and referrals are not
//! cached.

use std::borrow::Cow;
use std::fmt;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use weft_smb::client::{Referral, Target};

use super::dial::Dial;
use super::smb::session::{Entered, enter};
use crate::Failure;
use crate::default_port;
use crate::url::Url;

/// Maximum number of links in a row: more are probably a loop.
const MOST_LINKS: usize = 8;

/// Maps the user's paths to the paths at the links' targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Through(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    link: String,
    target: Target,
}

impl Through {
    /// The path at the target.
    pub(super) fn of<'a>(&self, path: &'a str) -> Result<Cow<'a, str>, Failure> {
        let mut path = Cow::Borrowed(path);
        for Step { link, target } in &self.0 {
            let rest = path.get(link.len()..).filter(|rest| rest.is_empty() || rest.starts_with('/'));
            let rest = rest.filter(|_| path[..link.len()].to_lowercase() == link.to_lowercase());
            let rest = rest.ok_or_else(|| format!("{path} is not below the DFS link {link}"))?;
            path = Cow::Owned(join(&target.path, rest.trim_start_matches('/')));
        }
        Ok(path)
    }
}

impl fmt::Display for Through {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|Step { link, target }| {
            write!(f, ", through the DFS link {link} to //{}/{}", target.host, target.share)
        })
    }
}

fn join(folder: &str, name: &str) -> String {
    match (folder.is_empty(), name.is_empty()) {
        (true, _) => name.to_owned(),
        (_, true) => folder.to_owned(),
        _ => format!("{folder}/{name}"),
    }
}

/// Connects to the share that really contains the URL's path.
pub(super) async fn follow(dial: &Dial<'_>, password: &str) -> Result<(Entered, Through), Failure> {
    let mut through = Through::default();
    let entered = reach(dial, password, &mut through).await?;
    Ok((entered, through))
}

fn reach<'a>(
    dial: &'a Dial<'a>,
    password: &'a str,
    through: &'a mut Through,
) -> LocalBoxFuture<'a, Result<Entered, Failure>> {
    async move {
        let entered = enter(dial, password).await?;
        let Url { share, path, .. } = dial.url;
        if !entered.tree.is_dfs() || path.is_empty() {
            return Ok(entered);
        }
        let Some(Referral { link, targets }) = entered.session.referral(share, path).await? else {
            return Ok(entered);
        };
        if through.0.len() == MOST_LINKS {
            return Err(format!("{}: more than {MOST_LINKS} DFS links in a row", dial.url).into());
        }
        entered.session.logoff().await?;
        let mut last: Option<Failure> = None;
        for target in targets {
            let so_far = through.0.len();
            through.0.push(Step { link: link.clone(), target: target.clone() });
            let rest = path.get(link.len()..).unwrap_or_default().trim_start_matches('/');
            let beyond = behind(dial.url, &target, rest);
            let reached = match Dial::new(&beyond, dial.options, dial.pool, dial.congestion, dial.until).await
            {
                Ok(dial) => reach(&dial, password, through).await,
                Err(e) => Err(e),
            };
            match reached {
                Ok(entered) => return Ok(entered),
                // The next target may be reachable.
                Err(e) => {
                    tracing::debug!("the DFS link {link} leads to {beyond}: {e}");
                    through.0.truncate(so_far);
                    last = Some(format!("the DFS link {link} leads to {beyond}: {e}").into());
                }
            }
        }
        Err(last.unwrap_or_else(|| format!("the DFS link {link} has no target").into()))
    }
    .boxed_local()
}

/// The URL of a link's target. Referrals contain no ports: a server that we know keeps its own.
fn behind(from: &Url, target: &Target, rest: &str) -> Url {
    let same = target.host.eq_ignore_ascii_case(&from.host);
    Url {
        host: target.host.clone(),
        // A server that we already know may have another port.
        port: if same { from.port } else { default_port::SMB },
        share: target.share.clone(),
        path: join(&target.path, rest),
        rdma_port: from.rdma_port.filter(|_| same),
        ..from.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str) -> Target {
        Target { host: "nas".into(), share: "s".into(), path: path.into() }
    }

    #[test]
    fn paths_behind_links() {
        let through = Through(vec![
            Step { link: "a/Link".into(), target: target("x/y") },
            Step { link: "X/y/z".into(), target: target("") },
        ]);
        assert_eq!(through.of("A/link/z/file").unwrap(), "file");
        assert_eq!(through.of("a/Link/z").unwrap(), "");
        for outside in ["a/Linked/z", "a", "b/Link/z", "a/Link/other", ""] {
            assert!(through.of(outside).is_err(), "{outside}");
        }
        assert_eq!(Through::default().of("p").unwrap(), "p");
    }

    #[test]
    fn a_server_that_we_know_keeps_its_port() {
        let url = Url::parse("smb://alice@nas:4450/dfs/Link/f?rdmaport=5445").unwrap().unwrap();
        let there = behind(&url, &target("x"), "f");
        assert_eq!((there.port, there.rdma_port, &*there.path), (4450, Some(5445), "x/f"));
        let other = Target { host: "other".into(), ..target("") };
        let there = behind(&url, &other, "f");
        assert_eq!((there.port, there.rdma_port, &*there.share, &*there.path), (445, None, "s", "f"));
    }
}
