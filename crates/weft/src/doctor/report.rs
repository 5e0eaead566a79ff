//! A checklist and its verdict: for people and as JSON.
//!
//! Does not: examine.

use std::fmt::Write as _;

use serde::Serialize;

use crate::out;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// As it should be.
    Ok,
    /// Works, but not as well as it could, or not for everybody.
    Warning,
    /// In the way of RDMA.
    Failed,
    /// Not looked at, and why.
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
    /// What was looked at; names stay the same from version to version.
    pub name: String,
    /// How it ended.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What to do about it, a thing a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// What it all adds up to.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Verdict {
    /// RDMA is used, or would be.
    pub rdma: bool,
    /// The providers that work, the one that is taken first.
    pub by: Vec<&'static str>,
    /// The sentence.
    pub because: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// The whole examination.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    /// As it was asked for.
    pub host: String,
    /// In order.
    pub steps: Vec<Step>,
    /// The end.
    pub verdict: Verdict,
}

impl Report {
    /// A step that is as it should be.
    pub(crate) fn ok(&mut self, name: impl Into<String>, found: impl Into<String>) {
        self.add(name, Status::Ok, found, None);
    }

    /// A step that is as it should be, with what to do where it does not help.
    pub(crate) fn advise(&mut self, name: impl Into<String>, found: impl Into<String>, remedy: &str) {
        self.add(name, Status::Ok, found, Some(remedy.to_owned()));
    }

    /// A step that could be better.
    pub(crate) fn warn(&mut self, name: impl Into<String>, found: impl Into<String>, remedy: &str) {
        self.add(name, Status::Warning, found, Some(remedy.to_owned()));
    }

    /// A step that is in the way.
    pub(crate) fn fail(&mut self, name: impl Into<String>, found: impl Into<String>, remedy: &str) {
        self.add(name, Status::Failed, found, Some(remedy.to_owned()));
    }

    /// A step that was not taken, and what it takes.
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
        // What was found may be what a server said; the page and the terminal show it alike.
        let (name, found) = (out::name(&name.into()), out::lines(&found.into()));
        self.steps.push(Step { name, status, found, remedy: remedy.as_deref().map(out::lines) });
    }

    /// The first step that is in the way.
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
