//! Workloads of the user's own: job files, and the command lines of other load generators.
//!
//! `weft_load::jobfile` and `weft_load::loaders` parse them; this file resolves the servers and files that they name.

use std::process::ExitCode;

use clap::ValueEnum;
use weft_load::job::Job;
use weft_load::jobfile::JobFile;
use weft_load::loaders::{Understood, diskspd, iozone, sqlio};

use super::{Assignment, Assignments, session, timing};
use crate::Failure;
use crate::args::{JobOf, LoaderOf, Measuring, Over, ServerOf};
use crate::misuse::Misuse;
use crate::url::{Scheme, Url};

/// Runs `weft bench run`.
pub(super) fn run(args: JobOf) -> Result<ExitCode, Failure> {
    let named = args.file.display();
    let text = std::fs::read_to_string(&args.file).map_err(|e| format!("{named}: {e}"))?;
    let file = JobFile::parse(&text).map_err(|e| format!("{named}: {e}"))?;
    let host = args.host.or(file.server).ok_or_else(|| {
        Misuse::new(format!(
            "{named} names no server: write server = \"local\" (or a HOST or URL) in it, or give HOST after it"
        ))
    })?;
    let mut server = args.server;
    if server.transport.is_empty() {
        let over = |name: &String| {
            Over::from_str(name, false).map_err(|_| {
                format!("{named}: {name:?} is not a transport: write tcp, iwarp, iwarp-nocrc, shm or rnic")
            })
        };
        server.transport = file.transports.iter().map(over).collect::<Result<_, _>>()?;
    }
    let scheme = match file.protocol.as_deref() {
        Some("nfs") => Scheme::Nfs,
        None if host.starts_with("nfs://") => Scheme::Nfs,
        _ => Scheme::Smb,
    };
    let jobs = file.jobs.into_iter().map(|job| with_options(job, &args.measuring, &server));
    let all = jobs.map(|job| Assignment::Job(scheme, job)).collect();
    session(
        &format!("weft bench run {named}"),
        &host,
        &server,
        &args.measuring,
        &args.only,
        Vec::new(),
        Assignments { all, pace: None },
    )
}

/// Options of the command line take precedence over the job file.
fn with_options(mut job: Job, measuring: &Measuring, server: &ServerOf) -> Job {
    if measuring.duration.is_some() {
        job.timing = timing(measuring, 0.0);
    } else if measuring.until_steady.is_some() {
        job.timing.steady = timing(measuring, job.timing.duration.as_secs_f64()).steady;
    }
    job.repetitions = measuring.repetitions.unwrap_or(job.repetitions);
    job.file_bytes = measuring.file_size.unwrap_or(job.file_bytes);
    job.channels = server.channels.unwrap_or(job.channels);
    job.verify |= measuring.verify;
    job
}

/// The supported load generators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loader {
    Diskspd,
    Sqlio,
    Iozone,
}

/// Runs `weft bench diskspd`, `sqlio` or `iozone`.
pub(super) fn run_as(loader: Loader, args: LoaderOf) -> Result<ExitCode, Failure> {
    let (name, understood) = match loader {
        Loader::Diskspd => ("diskspd", diskspd::parse(&args.line)?),
        Loader::Sqlio => ("sqlio", sqlio::parse(&args.line)?),
        Loader::Iozone => ("iozone", iozone::parse(&args.line)?),
    };
    let Understood { jobs, targets, creates, notes } = understood;
    let urls = targets
        .iter()
        .map(|target| url(&within(args.folder.as_deref(), target)))
        .collect::<Result<Vec<Url>, Failure>>()?;
    let Some(first) = urls.first() else {
        return Err(Misuse::new("give the file at the end: //HOST/SHARE/FILE").into());
    };
    if let Some(other) = urls.iter().find(|url| !is_beside(url, first)) {
        let apart = format!("{other} and {first} are on different shares: measure one after the other");
        return Err(Misuse::new(apart).into());
    }
    let paths: Vec<String> = urls.iter().map(|url| url.path.clone()).collect();
    let assignment = |job: Job| {
        let job = with_options(job, &args.measuring, &args.server);
        Assignment::Job(first.scheme, Job { paths: paths.clone(), creates, ..job })
    };
    let title = format!("weft bench {name} {}", args.line.join(" "));
    let host = if first.host == "local" { "local".to_owned() } else { root(first) };
    let assignments = Assignments { all: jobs.into_iter().map(assignment).collect(), pace: None };
    session(&title, &host, &args.server, &args.measuring, "", notes, assignments)
}

/// A name without a server means a file in `folder`.
fn within(folder: Option<&str>, target: &str) -> String {
    let is_bare = !target.contains("://") && !target.starts_with(['/', '\\']);
    let Some(folder) = folder.filter(|_| is_bare) else { return target.to_owned() };
    // The options of a URL stay after its path.
    let (path, options) = match folder.split_once('?').filter(|_| folder.contains("://")) {
        Some((path, options)) => (path, format!("?{options}")),
        None => (folder, String::new()),
    };
    format!("{}/{target}{options}", path.trim_end_matches(['/', '\\']))
}

/// `//HOST/SHARE/FILE`, `\\HOST\SHARE\FILE`, or a URL.
fn url(target: &str) -> Result<Url, Failure> {
    let text = target.replace('\\', "/");
    let text = match text.strip_prefix("//") {
        Some(rest) => format!("smb://{rest}"),
        None => text,
    };
    let url = Url::parse(&text)?.ok_or_else(|| {
        Misuse::new(format!(
            "{target:?} is a local path: give a file on a server, //HOST/SHARE/FILE or nfs://HOST/EXPORT/FILE, or its folder with \
             --folder"
        ))
    })?;
    match url.path.is_empty() {
        true => Err(Misuse::new(format!("{target:?} names no file: //HOST/SHARE/FILE")).into()),
        false => Ok(url),
    }
}

fn is_beside(a: &Url, b: &Url) -> bool {
    (a.scheme, &a.host, a.port, &a.share, &a.user) == (b.scheme, &b.host, b.port, &b.share, &b.user)
}

/// The share of a file, in the form of HOST; with its port, so that only one server is meant.
pub(super) fn root(url: &Url) -> String {
    Url { path: String::new(), folder: false, port_named: true, ..url.clone() }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_as_windows_or_as_urls_name_them() {
        for target in ["//nas/share/dir/file", r"\\nas\share\dir\file", "smb://nas/share/dir/file"] {
            let url = url(target).unwrap();
            assert_eq!(
                (url.scheme, url.share.as_str(), url.path.as_str()),
                (Scheme::Smb, "share", "dir/file")
            );
            assert_eq!(root(&url), "smb://nas:445/share");
        }
        let nfs = url("nfs://[::1]:2049/%2Fa%2Fb/f?mountport=1&rdmaport=2").unwrap();
        assert_eq!(root(&nfs), "nfs://[::1]:2049/%2Fa%2Fb?mountport=1&rdmaport=2");
        assert_eq!(root(&url("nfs://nas/x/f?vers=4.1").unwrap()), "nfs://nas:2049/x?vers=4.1");
        for (folder, full) in [
            ("//nas/share", "//nas/share/f"),
            (r"\\nas\share\", r"\\nas\share/f"),
            ("nfs://nas/x/?mountport=1", "nfs://nas/x/f?mountport=1"),
        ] {
            assert_eq!(within(Some(folder), "f"), full);
        }
        assert_eq!(within(Some("//nas/share"), "//other/share/f"), "//other/share/f");
        assert_eq!(within(None, "f"), "f");
        assert!(url("f").unwrap_err().to_string().contains("--folder"));
        assert!(url("/mnt/file").unwrap_err().to_string().contains("a local path"));
        assert!(url("//nas/share").unwrap_err().to_string().contains("names no file"));
    }
}
