//! The terminal of `weft status --watch`: asks the servers repeatedly, and draws their answers.
//!
//! This file owns the terminal while it runs, and always restores it: after `q`, Ctrl-C, SIGTERM, an error, a panic.
//! A thread asks the servers, so that a hanging server does not block the keys. [`super::page`] defines the contents.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::DefaultTerminal;

use super::page::Page;
use super::{Status, chosen};
use crate::Failure;
use crate::admin::Request;

/// How soon a key, a signal or an answer is noticed.
const TICK: Duration = Duration::from_millis(100);

/// A message of the asking thread: the answers with the time since the previous ones, or why there are none.
type News = Result<(Vec<Status>, Duration), String>;

/// Watches until the user ends it.
pub(super) fn watch(state: PathBuf, pid: Option<u32>, every: Duration) -> Result<(), Failure> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, ended.clone())?;
    }
    // The first answer comes before the terminal is taken over, so that an initial error is printed like any
    // command's.
    let first = ask(&state, pid)?;
    let (news, heard) = mpsc::channel();
    // Dropping its other end stops the thread.
    let (stop, stopped) = mpsc::channel();
    std::thread::spawn(move || keep_asking(&state, pid, every, &news, &stopped));
    // Also installs the hook that restores the terminal on a panic.
    let mut terminal = ratatui::try_init()?;
    let mut page = Page::default();
    page.take(first, Duration::ZERO);
    let outcome = show(&mut terminal, &mut page, &heard, &ended);
    ratatui::try_restore()?;
    drop(stop);
    outcome
}

fn ask(state: &std::path::Path, pid: Option<u32>) -> Result<Vec<Status>, Failure> {
    chosen(state, pid)?
        .iter()
        .map(|server| Ok(serde_json::from_value(server.ask(&Request::Status)?)?))
        .collect()
}

fn keep_asking(
    state: &std::path::Path,
    pid: Option<u32>,
    every: Duration,
    news: &Sender<News>,
    stopped: &Receiver<()>,
) {
    let mut last = Instant::now();
    while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        let answer = ask(state, pid).map_err(|e| e.to_string());
        let now = Instant::now();
        let answer = answer.map(|servers| (servers, now - last));
        if answer.is_ok() {
            last = now;
        }
        if news.send(answer).is_err() {
            return;
        }
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    page: &mut Page,
    heard: &Receiver<News>,
    ended: &AtomicBool,
) -> Result<(), Failure> {
    terminal.draw(|frame| page.draw(frame))?;
    while !ended.load(Ordering::Relaxed) {
        let mut changed = false;
        for answer in heard.try_iter() {
            changed = true;
            match answer {
                Ok((servers, after)) => page.take(servers, after),
                Err(why) => page.fail(why),
            }
        }
        if event::poll(TICK)? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    if ends(&key) {
                        return Ok(());
                    }
                    press(page, key.code);
                    changed = true;
                }
                // The new size is drawn at once.
                Event::Resize(..) => changed = true,
                _ => {}
            }
        }
        if changed {
            terminal.draw(|frame| page.draw(frame))?;
        }
    }
    Ok(())
}

/// In raw mode Ctrl-C is a key.
fn ends(key: &KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
        || (control && matches!(key.code, KeyCode::Char('c' | 'd')))
}

fn press(page: &mut Page, key: KeyCode) {
    match key {
        KeyCode::Up | KeyCode::Char('k') => page.step(-1),
        KeyCode::Down | KeyCode::Char('j') => page.step(1),
        KeyCode::PageUp => page.step(-10),
        KeyCode::PageDown => page.step(10),
        KeyCode::Home => page.step(isize::MIN),
        KeyCode::End => page.step(isize::MAX),
        KeyCode::Char('p' | ' ') => page.paused = !page.paused,
        _ => {}
    }
}
