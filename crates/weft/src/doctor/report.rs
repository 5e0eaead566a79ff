//! A checklist and its verdict, as text and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use crate::out;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// As it should be.
    Ok,
    /// Works, but not optimally, or not for every client.
    Warning,
    /// Prevents RDMA.
    Failed,
    /// Not examined; the reason is given.
    Skipped,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Warning => "warning",
            Status::Failed => "failed",
            Status::Skipped => "skipped",
        }
    }

    /// Its colour on a terminal: green, yellow, red, grey.
    fn colour(self) -> &'static str {
        match self {
            Status::Ok => "\x1b[32m",
            Status::Warning => "\x1b[33m",
            Status::Failed => "\x1b[31m",
            Status::Skipped => "\x1b[90m",
        }
    }
}

/// One line of the checklist.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Step {
    /// The subject; names stay the same from version to version.
    pub name: String,
    /// The result.
    pub status: Status,
    /// The finding.
    pub found: String,
    /// What to do about it, one action per line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// The conclusion.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Verdict {
    /// Whether RDMA is used or can be used.
    pub rdma: bool,
    /// The providers that work, in order of preference.
    pub by: Vec<&'static str>,
    /// The explanation.
    pub because: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// The whole examination.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    /// The host, as the user wrote it.
    pub host: String,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The verdict.
    pub verdict: Verdict,
}

impl Report {
    /// Adds a successful step.
    pub(crate) fn ok(&mut self, name: impl Into<String>, found: impl Into<String>) {
        self.add(name, Status::Ok, found, None);
    }

    /// Adds a successful step with advice in case of problems.
    pub(crate) fn advise(&mut self, name: impl Into<String>, found: impl Into<String>, remedy: &str) {
        self.add(name, Status::Ok, found, Some(remedy.to_owned()));
    }

    /// Adds a step that could be better.
    pub(crate) fn warn(&mut self, name: impl Into<String>, found: impl Into<String>, remedy: &str) {
        self.add(name, Status::Warning, found, Some(remedy.to_owned()));
    }

    /// Adds a step that prevents RDMA.
    pub(crate) fn fail(&mut self, name: impl Into<String>, found: impl Into<String>, remedy: &str) {
        self.add(name, Status::Failed, found, Some(remedy.to_owned()));
    }

    /// Adds a skipped step, with what it would need.
    pub(crate) fn skip(&mut self, name: impl Into<String>, found: impl Into<String>, remedy: Option<&str>) {
        self.add(name, Status::Skipped, found, remedy.map(str::to_owned));
    }

    fn add(
        &mut self,
        name: impl Into<String>,
        status: Status,
        found: impl Into<String>,
        remedy: Option<String>,
    ) {
        // A finding may contain text from a server; page and terminal show it alike.
        let (name, found) = (out::name(&name.into()), out::lines(&found.into()));
        self.steps.push(Step { name, status, found, remedy: remedy.as_deref().map(out::lines) });
    }

    /// The first step that prevents RDMA.
    pub(crate) fn first_failure(&self) -> Option<&Step> {
        self.steps.iter().find(|step| step.status == Status::Failed)
    }

    /// The step of that name.
    #[cfg(test)]
    pub(crate) fn step(&self, name: &str) -> &Step {
        self.steps
            .iter()
            .find(|step| step.name == name)
            .unwrap_or_else(|| panic!("no step {name}: {self:#?}"))
    }

    /// The checklist for a terminal.
    pub(crate) fn render(&self, colours: bool) -> String {
        let mut text = String::new();
        let width = self.steps.iter().map(|step| step.name.len()).max().unwrap_or(0);
        let paint = |status: Status, word: String| match colours {
            true => format!("{}{word}\x1b[0m", status.colour()),
            false => word,
        };
        // Writing to a String cannot fail.
        for Step { name, status, found, remedy } in &self.steps {
            let word = paint(*status, format!("{:<7}", status.word()));
            let _ = writeln!(text, "  {word}  {name:<width$}  {found}");
            for line in remedy.iter().flat_map(|remedy| remedy.lines()) {
                let _ = writeln!(text, "  {:7}  {:<width$}  -> {line}", "", "");
            }
        }
        let Verdict { rdma, because, remedy, .. } = &self.verdict;
        let status = if *rdma { Status::Ok } else { Status::Failed };
        let _ = writeln!(text, "\n{}", paint(status, out::lines(because)));
        if let Some(remedy) = remedy {
            let _ = writeln!(text, "-> {}", out::lines(remedy));
        }
        text
    }
}
