//! The result as one self-contained HTML page: an overview, the papers' figures, how the payload travelled, the
//! environment.
//!
//! It is one file without scripts, fonts or URLs; its policy forbids loading anything. It follows the reader's light
//! or dark setting, is readable from 320 pixels on, and has every figure as a table too. This file has the page's
//! order and text; figures and ratios come from the result.

mod chart;
mod figures;
mod glance;
mod tables;

use std::fmt::Write as _;

use super::{order, published, show};
use crate::result::{Environment, Measure, Picture, Report, Section};

const STYLE: &str = include_str!("html/style.css");

/// Nothing may be loaded, whatever a name in the result contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// The page.
pub fn render(report: &Report) -> String {
    let mut page = head(&report.title);
    let title = escape(&report.title);
    // Writing to a String cannot fail.
    let _ =
        write!(page, "<header><h1>{title}</h1><p class=sub>{}</p></header><main>", escape(&subtitle(report)));
    care(&mut page, report);
    glance::write(&mut page, report);
    for picture in Picture::ALL {
        let sections: Vec<&Section> =
            report.sections.iter().filter(|section| section.picture == picture).collect();
        if !sections.is_empty() {
            picture_of(&mut page, picture, &sections);
        }
    }
    tables::claims(&mut page, report);
    tables::verdicts(&mut page, report);
    tables::traffic(&mut page, report);
    tables::points(&mut page, report);
    environment(&mut page, report);
    page.push_str("</main></body></html>\n");
    page
}

/// Everything before the page's content; comparisons use it too.
pub(super) fn head(title: &str) -> String {
    format!(
        "<!doctype html><html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content='width=device-width,initial-scale=1'>\
         <meta http-equiv=Content-Security-Policy content=\"{POLICY}\"><meta name=color-scheme content='light dark'>\
         <title>{}</title><style>{STYLE}</style></head><body>",
        escape(title)
    )
}

fn subtitle(report: &Report) -> String {
    let env = &report.environment;
    let mut parts = vec![
        format!("{}, {} processors", env.processor, env.processors),
        format!("Linux {}", env.kernel),
        format!("Weft {}", env.version),
    ];
    if let Some(started) = &report.started {
        parts.insert(0, started.replace('T', " ").replace('Z', " UTC"));
    }
    if let Some(seconds) = report.seconds {
        parts.push(format!("measured in {seconds:.0} s"));
    }
    parts.join(" \u{b7} ")
}

/// The notice of marks and missing measurements, above the figures.
fn care(page: &mut String, report: &Report) {
    let mut lines: Vec<String> = Vec::new();
    if report.interrupted {
        lines.push("The run was ended early: what is missing was not measured.".to_owned());
    }
    lines.extend(report.marks.iter().map(|mark| mark.text.clone()));
    let points = report.points().count();
    let marked = report.points().filter(|(_, point)| !point.marks.is_empty()).count();
    if marked > 0 {
        lines.push(format!("{marked} of {points} points are to be read with care: hollow in the figures, the reason in the list of points."));
    }
    let refused: usize = report.sections.iter().map(|section| section.refusals.len()).sum();
    if refused > 0 {
        let many = if refused == 1 { "One measurement that was" } else { "Measurements that were" };
        lines.push(format!("{many} asked for could not be made; each picture says which and why."));
    }
    if lines.is_empty() {
        return;
    }
    page.push_str("<aside class=care role=note><b>Read with care</b><ul>");
    for line in lines {
        let _ = write!(page, "<li>{}</li>", escape(&line));
    }
    page.push_str("</ul></aside>");
}

/// The title of a picture, and a description.
pub(super) fn words(picture: Picture) -> (&'static str, &'static str) {
    match picture {
        Picture::Latency => (
            "SMB round trips by block size",
            "One READ or WRITE at a time: how long until its answer is here. The sqlio paper's figure 1.",
        ),
        Picture::Smb => (
            "SMB throughput, operations and cycles by block size",
            "Many operations at a time on many files. Cycles per byte are what the processors of both ends spend to move a byte. The diskspd paper's figures 1 to 3.",
        ),
        Picture::Table => (
            "SMB READs of 512, 8 and 1 KiB",
            "The table of Windows Server 2012 Beta: operations, bandwidth and latency.",
        ),
        Picture::Nfs => (
            "NFS throughput, interrupts and idle processors by block size",
            "Sequential streams of several clients. The iozone paper's figures 3 to 6.",
        ),
        Picture::Replica => (
            "A replicated volume: its first copy, and durable writes",
            "Bandwidth, processors and memory of both ends of a copy: the Storage Replica post. Then how long a durable write takes, one at a time: not replicated, replicated asynchronously, and synchronously over each transport.",
        ),
        Picture::Demo => (
            "RDMA beside TCP",
            "The same READs and WRITEs over TCP and over RDMA, interleaved in one run: round trips one at a time, then throughput and cycles with many at a time.",
        ),
        Picture::Own => ("Own workloads", ""),
    }
}

fn picture_of(page: &mut String, picture: Picture, sections: &[&Section]) {
    let (title, what) = words(picture);
    let _ = write!(
        page,
        "<section id={picture}><h2>{title}</h2><p>{what} Points are medians of the repetitions, whiskers their range.</p>"
    );
    legend(page, picture, sections);
    for section in sections {
        peer(page, section);
        for refusal in &section.refusals {
            let work = refusal.work.as_ref().map_or(String::new(), |work| format!(" {work}"));
            let _ = write!(
                page,
                "<p class=refusal><b>Not measured:</b> {}{}: {}</p>",
                escape(show::transport(&refusal.transport)),
                escape(&work),
                escape(&refusal.reason)
            );
        }
        let panels = figures::panels(section);
        let mut rows: Vec<figures::Row> = Vec::new();
        for panel in panels.keys() {
            for row in figures::rows(picture, panel) {
                if !rows.iter().any(|r| r.measure == row.measure) {
                    rows.push(row);
                }
            }
        }
        // Rows of three stay rows; shorter ones flow, so that half the page is never empty.
        let mut drawn: Vec<Vec<String>> = Vec::new();
        for row in &rows {
            let row = panels
                .iter()
                .filter(|(panel, _)| figures::rows(picture, panel).iter().any(|r| r.measure == row.measure))
                .filter_map(|(panel, points)| figures::figure(section, panel, points, row));
            drawn.push(row.collect());
        }
        if matches!(picture, Picture::Latency | Picture::Demo | Picture::Own) {
            let one = panels.iter().filter(|(panel, _)| panel.depth == 1 || picture == Picture::Own);
            drawn.push(one.filter_map(|(panel, points)| figures::tail(panel, points)).collect());
        }
        drawn.push(panels.iter().filter_map(|(panel, points)| figures::timeline(panel, points)).collect());
        if drawn.iter().any(|row| row.len() >= 3) {
            drawn.iter().for_each(|row| grid(page, row));
        } else {
            grid(page, &drawn.concat());
        }
        for note in &section.notes {
            let _ = write!(page, "<p class=note>{}</p>", escape(note));
        }
    }
    sources(page, picture);
    page.push_str("</section>");
}

fn grid(page: &mut String, figures: &[String]) {
    if !figures.is_empty() {
        let _ = write!(page, "<div class=figures>{}</div>", figures.concat());
    }
}

fn legend(page: &mut String, picture: Picture, sections: &[&Section]) {
    let mut names: Vec<&str> =
        sections.iter().flat_map(|s| s.points.iter().map(|p| p.transport.as_str())).collect();
    names.sort_by_key(|name| order(name));
    names.dedup();
    page.push_str("<ul class=legend aria-label='Legend'>");
    for name in names {
        let _ =
            write!(page, "<li>{}{}</li>", chart::key(figures::class(name)), escape(show::transport(name)));
    }
    if published::PUBLISHED.iter().any(|p| p.picture == picture) {
        page.push_str(
            "<li><svg class='key' viewBox='0 0 22 12' aria-hidden=true><path class='rule published' d='M0 6h22'/></svg>\
             published, other hardware</li>",
        );
    }
    page.push_str(
        "<li><svg class='key series other' viewBox='0 0 22 12' aria-hidden=true><path class='dot hollow' \
         d='M7 6a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z'/></svg>hollow: read with care, or no difference beyond noise</li></ul>",
    );
}

fn peer(page: &mut String, section: &Section) {
    let Some(peer) = &section.peer else { return };
    let mut parts = vec![peer.software.clone().unwrap_or_else(|| "an unidentified server".into())];
    parts.push(format!("at {}", peer.host));
    if peer.same_host {
        parts.push("on the client's own host".into());
    }
    parts.extend(peer.dialect.clone());
    parts.extend(peer.signing.as_ref().map(|s| format!("signing: {s}")));
    parts.extend(peer.encryption.as_ref().map(|s| format!("encryption: {s}")));
    let _ = write!(page, "<p class=peer>Measured against {}</p>", escape(&parts.join(", ")));
}

/// The published numbers of a picture, with their sources.
fn sources(page: &mut String, picture: Picture) {
    let all: Vec<_> = published::PUBLISHED.iter().filter(|p| p.picture == picture).collect();
    let missing = published::missing(picture);
    if all.is_empty() && missing.is_none() {
        return;
    }
    page.push_str("<details class=sources><summary>What was published, on other hardware</summary><ul>");
    for p in all {
        let _ = write!(page, "<li>{} <span class=source>{}</span></li>", escape(p.text), escape(p.source));
    }
    if let Some(text) = missing {
        let _ = write!(page, "<li>{}</li>", escape(text));
    }
    page.push_str("</ul></details>");
}

/// For a comparison: the ratios of the second result to the first, one chart per panel and measure.
pub(super) fn differences(
    page: &mut String,
    picture: Picture,
    before: &Report,
    after: &Report,
    measures: &[Measure],
) {
    let of = |report: &'_ Report| -> Vec<usize> {
        (0..report.sections.len()).filter(|at| report.sections[*at].picture == picture).collect()
    };
    let mut drawn = Vec::new();
    for at in of(before) {
        for (panel, points) in figures::panels(&before.sections[at]) {
            for row in figures::rows(picture, &panel).iter().filter(|row| measures.contains(&row.measure)) {
                let others: Vec<_> =
                    of(after).into_iter().flat_map(|at| &after.sections[at].points).collect();
                drawn.extend(figures::difference(&panel, &points, &others, row));
            }
        }
    }
    grid(page, &drawn);
}

fn environment(page: &mut String, report: &Report) {
    page.push_str("<section id=environment><h2>How it was measured</h2>");
    for env in std::iter::once(&report.environment).chain(&report.others) {
        host(page, env);
    }
    if !report.notes.is_empty() {
        page.push_str("<h3>Notes</h3><ul>");
        for note in &report.notes {
            let _ = write!(page, "<li>{}</li>", escape(note));
        }
        page.push_str("</ul>");
    }
    page.push_str("</section>");
}

pub(super) fn host(page: &mut String, env: &Environment) {
    let role = if env.role.is_empty() { "Host" } else { &env.role };
    let mut role = role.to_owned();
    if let Some(first) = role.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let _ = write!(
        page,
        "<h3>{}</h3><pre class=command tabindex=0>{}</pre><dl>",
        escape(&role),
        escape(&env.command)
    );
    let mut line = |name: &str, value: String| {
        let _ = write!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
    };
    let machine = match env.virtual_machine {
        Some(true) => ", virtual machine",
        _ => "",
    };
    line("Processor", format!("{} \u{d7} {}{machine}", env.processors, env.processor));
    line("Cycles", format!("{}, {:.2} GHz", env.cycles, env.hz / 1e9));
    if let Some(memory) = env.memory_bytes {
        line("Memory", show::bytes(memory as f64));
    }
    line(
        "System",
        env.system.iter().cloned().chain([format!("Linux {}", env.kernel)]).collect::<Vec<_>>().join(", "),
    );
    line("Reactor", env.driver.clone());
    line("TCP congestion control", env.congestion_control.clone());
    if let Some(interface) = &env.interface {
        let mtu = env.mtu.map_or(String::new(), |mtu| format!(", MTU {mtu}"));
        line("Network", format!("{interface}{mtu}"));
    }
    line("Weft", env.version.clone());
    for (name, version) in &env.versions {
        line(&escape(name), version.clone());
    }
    page.push_str("</dl>");
}

/// Escapes text and attributes in double quotes.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests;
