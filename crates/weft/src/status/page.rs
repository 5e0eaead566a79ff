//! `weft status --watch` as a terminal page: the current traffic, its transports and users, and why RDMA is not used.
//!
//! [`Page`] holds the two latest answers, because rates are shown; [`Page::draw`] draws it at any size.
//! [`super::screen`] asks the servers and owns the terminal.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Gauge, Paragraph, Row, Table, TableState, Wrap};

use super::print::{age, counted};
use super::{Connection, Status, Traffic};
use crate::replica::print::{Brief, brief};
use crate::size::human;
use crate::version;

/// Two answers of the servers, and the user's position in the list.
#[derive(Default)]
pub(super) struct Page {
    servers: Vec<Status>,
    /// The previous answer, and how long ago it was.
    before: Option<(Vec<Status>, Duration)>,
    /// Why there is no newer answer.
    trouble: Option<String>,
    selected: usize,
    /// Whether new answers are ignored.
    pub paused: bool,
}

/// A connection with its current rates.
struct Moving<'a> {
    server: &'a Status,
    connection: &'a Connection,
    rdma_rate: Option<f64>,
    inline_rate: Option<f64>,
}

impl Page {
    /// Takes a new answer, this long after the previous one.
    pub(super) fn take(&mut self, servers: Vec<Status>, after: Duration) {
        if self.paused {
            return;
        }
        self.before = Some((std::mem::replace(&mut self.servers, servers), after));
        self.trouble = None;
        self.selected = self.selected.min(self.count().saturating_sub(1));
    }

    /// Records a failed request; the last answer stays, with the reason above it.
    pub(super) fn fail(&mut self, why: String) {
        if !self.paused {
            self.trouble = Some(why);
        }
    }

    /// Moves the selection.
    pub(super) fn step(&mut self, lines: isize) {
        let last = self.count().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(lines).min(last);
    }

    fn count(&self) -> usize {
        self.servers.iter().map(|server| server.connections.len()).sum()
    }

    /// All connections, the busiest first, and of equal ones the older first.
    fn moving(&self) -> Vec<Moving<'_>> {
        let earlier = |server: &Status, connection: &Connection| -> Option<(Traffic, f64)> {
            let (before, after) = self.before.as_ref()?;
            let same = |c: &&Connection| {
                c.peer == connection.peer
                    && c.protocol == connection.protocol
                    && c.transport == connection.transport
            };
            let there = before.iter().find(|s| s.pid == server.pid)?.connections.iter().find(same)?;
            // A reused port is a new connection.
            (there.age_seconds <= connection.age_seconds).then_some((there.traffic, after.as_secs_f64()))
        };
        let mut moving: Vec<Moving<'_>> = Vec::new();
        for server in &self.servers {
            for connection in &server.connections {
                let before = earlier(server, connection).filter(|(_, seconds)| *seconds > 0.0);
                let rate = |of: fn(&Traffic) -> u64| {
                    let (traffic, seconds) = before?;
                    Some(of(&connection.traffic).saturating_sub(of(&traffic)) as f64 / seconds)
                };
                let (rdma_rate, inline_rate) = (rate(Traffic::rdma_bytes), rate(Traffic::inline_bytes));
                moving.push(Moving { server, connection, rdma_rate, inline_rate });
            }
        }
        let busy = |m: &Moving<'_>| m.rdma_rate.unwrap_or(0.0) + m.inline_rate.unwrap_or(0.0);
        moving.sort_by(|a, b| {
            busy(b).total_cmp(&busy(a)).then(b.connection.age_seconds.cmp(&a.connection.age_seconds))
        });
        moving
    }

    /// Draws the page at any size.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let moving = self.moving();
        let head = self.head(area.width);
        let advice = self.advice(&moving);
        // The list keeps its space; explanations get the rest.
        let explained = if area.height >= 16 && !advice.is_empty() {
            (advice.len() as u16 + 2).min(area.height / 3)
        } else {
            0
        };
        let sums = if area.height >= 8 { 3 } else { 0 };
        let replicas = self.replicas();
        let copies = if area.height >= 12 { (replicas.len() as u16).min(area.height / 4) } else { 0 };
        let [top, summary, copied, list, below, foot] = Layout::vertical([
            Constraint::Length((head.len() as u16).min(area.height)),
            Constraint::Length(sums),
            Constraint::Length(copies),
            Constraint::Min(0),
            Constraint::Length(explained),
            Constraint::Length(u16::from(area.height >= 3)),
        ])
        .areas(area);
        frame.render_widget(Paragraph::new(head), top);
        self.summary(frame, summary, &moving);
        frame.render_widget(Paragraph::new(replicas), copied);
        self.list(frame, list, &moving);
        let title = "on TCP although RDMA is served";
        let block = Block::bordered().title(title).border_style(Style::new().fg(Color::Yellow));
        frame.render_widget(Paragraph::new(advice).block(block).wrap(Wrap { trim: true }), below);
        let paused = if self.paused { "paused, p continues" } else { "p pauses" };
        let keys = format!(" q quits   up and down select   {paused}");
        frame.render_widget(Paragraph::new(keys).dim(), foot);
    }

    /// A line per server, and one for a problem.
    fn head(&self, width: u16) -> Vec<Line<'static>> {
        let mut lines: Vec<Line<'static>> = Vec::new();
        if let Some(why) = &self.trouble {
            lines.push(
                Line::from(format!(" {why}")).style(Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)),
            );
        }
        for server in &self.servers {
            let mut line = vec![
                Span::from(format!(" weft {}", version::text(&server.version, &server.build))).bold(),
                Span::from(format!("  process {}, up {}", server.pid, age(server.up_seconds))),
            ];
            let connections = counted(server.connections.len(), "connection");
            line.push(Span::from(format!("  {connections}, {}", counted(server.opens, "open file"))).dim());
            if width >= 100 {
                line.push(
                    Span::from(format!("  on {}, RDMA by {}", server.listen, server.providers.join(", ")))
                        .dim(),
                );
            }
            lines.push(Line::from(line));
        }
        if lines.is_empty() {
            lines.push(Line::from(" asking..."));
        }
        lines
    }

    /// One line per replica, those needing attention first, with the reason if RDMA is not used.
    fn replicas(&self) -> Vec<Line<'static>> {
        let mut briefs: Vec<Brief> =
            self.servers.iter().flat_map(|server| server.replicas.iter().flat_map(brief)).collect();
        briefs.sort_by_key(|brief| !brief.care);
        let line = |Brief { line, care, no_rdma }: Brief| {
            let style = if care { Style::new().fg(Color::Yellow) } else { Style::new() };
            let why = no_rdma.map_or(String::new(), |(reason, remedy)| format!(" ({reason}; try: {remedy})"));
            Line::from(vec![Span::from(format!(" replica {line}")).style(style), Span::from(why).dim()])
        };
        briefs.into_iter().map(line).collect()
    }

    /// The share of RDMA in the current traffic; if there is none, in all traffic so far.
    fn summary(&self, frame: &mut Frame<'_>, area: Rect, moving: &[Moving<'_>]) {
        let sum = |of: fn(&Moving<'_>) -> f64| moving.iter().map(of).sum::<f64>();
        let (rdma, inline) = (sum(|m| m.rdma_rate.unwrap_or(0.0)), sum(|m| m.inline_rate.unwrap_or(0.0)));
        let (total_rdma, total_inline) = (
            sum(|m| m.connection.traffic.rdma_bytes() as f64),
            sum(|m| m.connection.traffic.inline_bytes() as f64),
        );
        let now = rdma + inline > 0.0;
        let (part, whole) = if now { (rdma, rdma + inline) } else { (total_rdma, total_rdma + total_inline) };
        let part = if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 };
        let label = match (now, whole > 0.0) {
            (true, _) => format!(
                "{:.0}% by RDMA: {}, in messages {}",
                part * 100.0,
                per_second(rdma),
                per_second(inline)
            ),
            (false, true) => format!("no traffic now; {:.0}% by RDMA so far", part * 100.0),
            (false, false) => "no traffic yet".to_owned(),
        };
        let gauge = Gauge::default()
            .block(Block::bordered().title("bytes per second"))
            .gauge_style(Style::new().fg(Color::Green).bg(Color::DarkGray))
            .ratio(part)
            .label(Span::from(label).fg(Color::White).bold());
        frame.render_widget(gauge, area);
    }

    fn list(&self, frame: &mut Frame<'_>, area: Rect, moving: &[Moving<'_>]) {
        let columns = columns(area.width, self.servers.len() > 1);
        let head = Row::new(columns.iter().map(|column| column.head())).bold().bottom_margin(0);
        let rows = moving.iter().map(|m| {
            let style = match (&m.connection.provider, &m.connection.advice) {
                (Some(_), _) => Style::new().fg(Color::Green),
                (None, Some(_)) => Style::new().fg(Color::Yellow),
                (None, None) => Style::new(),
            };
            Row::new(columns.iter().map(|column| Cell::from(column.cell(m)))).style(style)
        });
        let widths = columns.iter().map(|column| column.width());
        let table = Table::new(rows, widths)
            .header(head)
            .column_spacing(2)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .block(Block::new());
        let selected = if moving.is_empty() { None } else { Some(self.selected.min(moving.len() - 1)) };
        let mut state = TableState::new().with_selected(selected);
        frame.render_stateful_widget(table, area, &mut state);
    }

    /// Each reason once, with its number of clients; the selected connection's first.
    fn advice(&self, moving: &[Moving<'_>]) -> Vec<Line<'static>> {
        let mut said: Vec<(&str, &str, usize)> = Vec::new();
        let chosen = moving.get(self.selected).into_iter();
        for (i, m) in chosen.chain(moving).enumerate() {
            let Some(advice) = &m.connection.advice else { continue };
            // The selected connection occurs twice in this chain.
            let count = usize::from(i > 0 || moving.get(self.selected).is_none());
            match said
                .iter_mut()
                .find(|(reason, remedy, _)| (*reason, *remedy) == (&*advice.reason, &*advice.remedy))
            {
                Some(found) => found.2 += count,
                None => said.push((&advice.reason, &advice.remedy, count)),
            }
        }
        let line = |(reason, remedy, n): &(&str, &str, usize)| {
            [
                Line::from(format!("{}: {reason}", counted((*n).max(1), "client"))),
                Line::from(format!("  try: {remedy}")).bold(),
            ]
        };
        said.iter().flat_map(line).collect()
    }
}

fn per_second(bytes: f64) -> String {
    format!("{}/s", human(bytes as u64))
}

/// A column of the list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Server,
    Protocol,
    Peer,
    Way,
    User,
    Protection,
    RdmaRate,
    InlineRate,
    Rdma,
    Inline,
    Part,
    Age,
}

/// The columns that fit, in order; the least important are dropped first.
fn columns(width: u16, servers: bool) -> Vec<Column> {
    // From the most to the least important.
    let wanted = [
        Column::Peer,
        Column::Way,
        Column::RdmaRate,
        Column::InlineRate,
        Column::Protocol,
        Column::Part,
        Column::User,
        Column::Rdma,
        Column::Inline,
        Column::Protection,
        Column::Age,
    ];
    let mut room = i32::from(width) - if servers { 9 } else { 0 };
    let mut kept: Vec<Column> = Vec::new();
    for column in wanted {
        let wide = i32::from(column.least()) + 2;
        if wide <= room + 2 || kept.is_empty() {
            room -= wide;
            kept.push(column);
        } else {
            break;
        }
    }
    let order = [
        Column::Server,
        Column::Protocol,
        Column::Peer,
        Column::Way,
        Column::User,
        Column::Protection,
        Column::RdmaRate,
        Column::InlineRate,
        Column::Rdma,
        Column::Inline,
        Column::Part,
        Column::Age,
    ];
    order.into_iter().filter(|c| kept.contains(c) || (servers && *c == Column::Server)).collect()
}

impl Column {
    fn head(self) -> &'static str {
        match self {
            Column::Server => "server",
            Column::Protocol => "protocol",
            Column::Peer => "client",
            Column::Way => "by",
            Column::User => "user",
            Column::Protection => "protection",
            Column::RdmaRate => "RDMA/s",
            Column::InlineRate => "messages/s",
            Column::Rdma => "by RDMA",
            Column::Inline => "in messages",
            Column::Part => "%",
            Column::Age => "for",
        }
    }

    fn least(self) -> u16 {
        match self {
            Column::Server => 7,
            Column::Protocol => 9,
            Column::Peer => 21,
            Column::Way => 14,
            Column::User => 10,
            Column::Protection => 13,
            Column::RdmaRate | Column::InlineRate => 11,
            Column::Rdma | Column::Inline => 11,
            Column::Part => 4,
            Column::Age => 9,
        }
    }

    fn width(self) -> Constraint {
        match self {
            // Addresses and names may be longer; they get the remaining width.
            Column::Peer | Column::User => Constraint::Min(self.least()),
            _ => Constraint::Length(self.least()),
        }
    }

    fn cell(self, m: &Moving<'_>) -> String {
        let c = m.connection;
        let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), per_second);
        let (rdma, inline) = (c.traffic.rdma_bytes(), c.traffic.inline_bytes());
        match self {
            Column::Server => m.server.pid.to_string(),
            Column::Protocol => match &c.dialect {
                Some(dialect) => format!("{} {dialect}", c.protocol.to_uppercase()),
                None => c.protocol.to_uppercase(),
            },
            Column::Peer => c.peer.clone(),
            Column::Way => match &c.provider {
                Some(provider) => format!("RDMA ({provider})"),
                None => c.transport.clone(),
            },
            Column::User => c.users(),
            Column::Protection => match c.sessions.first() {
                Some(session) if session.encryption.is_some() => "encrypted".to_owned(),
                Some(session) if session.signing_required => "signed".to_owned(),
                Some(_) => "none".to_owned(),
                None => match &c.nbd {
                    Some(nbd) if nbd.tls => "TLS".to_owned(),
                    _ => String::new(),
                },
            },
            Column::RdmaRate => rate(m.rdma_rate),
            Column::InlineRate => rate(m.inline_rate),
            Column::Rdma => human(rdma),
            Column::Inline => human(inline),
            Column::Part => match rdma + inline {
                0 => "-".to_owned(),
                all => format!("{:.0}", 100.0 * rdma as f64 / all as f64),
            },
            Column::Age => age(c.age_seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::{Advice, Group, Session};
    use super::*;

    fn connection(peer: &str, provider: Option<&str>, rdma: u64, inline: u64) -> Connection {
        let advice = Advice { reason: "the client did not ask".into(), remedy: "weft doctor".into() };
        Connection {
            protocol: "smb".into(),
            peer: peer.into(),
            transport: if provider.is_some() { "smb-direct" } else { "tcp" }.into(),
            provider: provider.map(str::to_owned),
            age_seconds: 61,
            dialect: Some("3.1.1".into()),
            sessions: vec![Session { user: "alice".into(), signing_required: true, ..Session::default() }],
            traffic: Traffic { rdma_written_bytes: rdma, sent_bytes: inline, ..Traffic::default() },
            advice: provider.is_none().then_some(advice),
            ..Connection::default()
        }
    }

    fn server(connections: Vec<Connection>) -> Status {
        Status {
            version: "0.1.0".into(),
            pid: 7,
            up_seconds: 7800,
            listen: "::".into(),
            connections,
            ..Status::default()
        }
    }

    fn watched() -> Page {
        let mut page = Page::default();
        let at = |scale: u64| {
            vec![server(vec![
                connection("10.0.0.2:40000", None, 0, scale << 20),
                connection("10.0.0.3:40001", Some("iwarp"), scale << 30, 0),
            ])]
        };
        page.take(at(1), Duration::ZERO);
        page.take(at(3), Duration::from_secs(2));
        page
    }

    fn seen(page: &Page, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| page.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(line).collect()
    }

    #[test]
    fn rates_come_first_then_who_has_no_rdma_and_what_to_type() {
        let lines = seen(&watched(), 150, 24);
        let text = lines.join("\n");
        assert!(lines[0].contains("weft 0.1.0  process 7, up 2 h 10 min"), "{text}");
        assert!(text.contains("100% by RDMA: 1 GiB/s, in messages 1 MiB/s"), "{text}");
        let rows: Vec<&String> = lines.iter().filter(|line| line.contains("10.0.0.")).collect();
        assert!(rows[0].contains("RDMA (iwarp)") && rows[0].contains("1 GiB/s"), "the busiest first: {text}");
        assert!(rows[1].contains("tcp") && rows[1].contains("signed") && rows[1].contains("1 min"), "{text}");
        assert!(
            text.contains("1 client: the client did not ask") && text.contains("try: weft doctor"),
            "{text}"
        );
        assert!(lines[23].contains("q quits"));
    }

    #[test]
    fn a_copy_that_lags_stands_above_those_that_follow() {
        let group = |name: &str, phase: &str| Group {
            name: name.into(),
            volumes: vec![name.into()],
            role: "source".into(),
            engine: serde_json::json!({ "peers": [{ "name": "other", "mode": "synchronous", "phase": phase }] }),
            ..Group::default()
        };
        let mut status = server(vec![connection("10.0.0.2:1", Some("iwarp"), 1 << 20, 0)]);
        status.replicas =
            vec![group("well", "ContinuouslyReplicating"), group("away", "WaitingForDestination")];
        let mut page = Page::default();
        page.take(vec![status], Duration::ZERO);
        let lines = seen(&page, 120, 24);
        let at = |part: &str| {
            lines.iter().position(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}: {lines:?}"))
        };
        assert!(at("away, source: synchronous to other, Waiting for destination") < at("well, source"));
        assert!(at("well, source") < at("10.0.0.2:1"), "the connections keep their place");
        // With little room, the list keeps it.
        assert!(seen(&page, 120, 8).iter().any(|line| line.contains("10.0.0.2:1")));
    }

    #[test]
    fn every_size_can_be_drawn_and_the_way_stays() {
        let page = watched();
        for width in [1, 2, 10, 30, 40, 60, 80, 100, 200] {
            for height in [1, 2, 3, 5, 8, 12, 24, 60] {
                let text = seen(&page, width, height).join("\n");
                if width >= 60 && height >= 12 {
                    assert!(
                        text.contains("RDMA (iwarp)") && text.contains("1 GiB/s"),
                        "{width}x{height}\n{text}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_port_that_came_back_is_another_connection() {
        let mut page = watched();
        let mut young = connection("10.0.0.3:40001", Some("iwarp"), 5 << 20, 0);
        young.age_seconds = 0;
        page.take(vec![server(vec![young])], Duration::from_secs(1));
        assert!(page.moving()[0].rdma_rate.is_none());
    }

    #[test]
    fn a_lost_server_is_said_above_what_was_last_known() {
        let mut page = watched();
        page.fail("no server runs".into());
        let lines = seen(&page, 80, 24);
        assert!(lines[0].contains("no server runs"));
        assert!(lines.join("\n").contains("10.0.0.3"));
        page.paused = true;
        page.take(vec![], Duration::from_secs(1));
        assert_eq!(page.count(), 2, "paused: nothing new is taken in");
        page.paused = false;
        page.take(vec![], Duration::from_secs(1));
        assert!(seen(&page, 80, 24)[0].contains("asking"));
    }

    #[test]
    fn the_selection_stays_in_the_list() {
        let mut page = watched();
        page.step(-5);
        assert_eq!(page.selected, 0);
        page.step(100);
        assert_eq!(page.selected, 1);
        page.take(vec![server(vec![connection("a:1", None, 0, 0)])], Duration::from_secs(1));
        assert_eq!(page.selected, 0);
    }

    #[test]
    fn several_servers_are_told_apart() {
        let mut page = watched();
        let mut other = server(vec![connection("10.9.9.9:1", None, 0, 9)]);
        other.pid = 12345;
        let mut all = page.servers.clone();
        all.push(other);
        page.take(all, Duration::from_secs(1));
        let text = seen(&page, 120, 30).join("\n");
        assert!(
            text.contains("process 12345") && text.contains("server") && text.contains("2 clients"),
            "{text}"
        );
    }
}
