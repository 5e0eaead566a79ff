//! `weft user` and `weft group`.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use weft_smb::auth::Secret;
use weft_store::rights::Principal;

use super::store::{Listing, Store, StoreError};
use super::{Name, joined, rights};
use crate::Failure;
use crate::admin::{self, Request};
use crate::args::{Group, GroupCommand, User, UserCommand};
use crate::out::path_name;
use crate::password::{self, Password};
use crate::state_of_command::{chosen_state, state_of_command};

/// Runs `weft user`.
pub(crate) fn user(args: User) -> Result<ExitCode, Failure> {
    let chosen_state = chosen_state(args.state_dir.as_deref())?;
    let state = chosen_state.dir;
    let store = Store::of(&state);
    match args.command {
        UserCommand::Add(args) => {
            // Before a password is asked for.
            if store.read()?.is_some_and(|listing| listing.user(&args.name).is_some()) {
                return Err(StoreError::UserExists(args.name).into());
            }
            let password = chosen(&args.name, args.generate)?;
            // Whoever meant the directory of a server sees that it is another one.
            let is_first = !chosen_state.is_named && !store.path().exists();
            store.add_user(&args.name, &Secret::password(&password.text), &args.groups)?;
            if is_first {
                say!("made {}", path_name(store.path()))?;
            }
            say!("added user {}", args.name)?;
            tell_password(&args.name, &password)?;
            apply(&state)?;
        }
        UserCommand::Passwd(args) => {
            let listing = store.read()?.unwrap_or_default();
            if listing.user(&args.name).is_none() {
                return Err(StoreError::NoUser(args.name).into());
            }
            if let (Some(fault), false) = (listing.key_fault, args.new_key) {
                return Err(store.key_lost(fault, &args.name).into());
            }
            let password = chosen(&args.name, args.generate)?;
            store.set_password(&args.name, &Secret::password(&password.text), args.new_key)?;
            say!("changed the password of {}", args.name)?;
            tell_password(&args.name, &password)?;
            if let Some(locked) = store.locked(&store.read()?.unwrap_or_default()) {
                note!("{locked}");
            }
            apply(&state)?;
        }
        UserCommand::Remove(args) => {
            if !args.force {
                rights::refuse_if_named(&state, &Principal::User(args.name.as_str().to_owned()))?;
            }
            store.remove_user(&args.name)?;
            say!("removed user {}", args.name)?;
            for (pid, configured) in apply(&state)? {
                if args.name == configured {
                    note!(
                        "server {pid} still admits {configured}: its configuration or --user names this user"
                    );
                }
            }
        }
        UserCommand::List(args) => {
            let listing = store.read()?;
            if listing.is_none() {
                note!("no users in {}", path_name(&state));
            }
            list_users(&listing.unwrap_or_default(), args.json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `weft group`.
pub(crate) fn group(args: Group) -> Result<ExitCode, Failure> {
    let state = state_of_command(args.state_dir.as_deref())?;
    let store = Store::of(&state);
    match args.command {
        GroupCommand::Add(args) => {
            store.add_to_group(&args.group, &args.users)?;
            match &args.users[..] {
                [] => say!("group {} exists", args.group)?,
                users => say!("{}: added {}", args.group, joined(users))?,
            }
            apply(&state)?;
        }
        GroupCommand::Remove(args) => {
            if args.users.is_empty() && !args.force {
                rights::refuse_if_named(&state, &Principal::Group(args.group.as_str().to_owned()))?;
            }
            store.remove_from_group(&args.group, &args.users)?;
            match &args.users[..] {
                [] => say!("removed group {}", args.group)?,
                users => say!("{}: removed {}", args.group, joined(users))?,
            }
            apply(&state)?;
        }
        GroupCommand::List(args) => list_groups(&store.read()?.unwrap_or_default(), args.json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn chosen(user: &Name, generate: bool) -> Result<Password, Failure> {
    Ok(if generate { password::generated()? } else { password::new_for(user.as_str())? })
}

/// Prints a password that the user does not know yet.
fn tell_password(user: &Name, password: &Password) -> Result<(), Failure> {
    if password.made_up {
        say!("password of {user}: {}", *password.text)?;
    }
    Ok(())
}

/// Lets the running servers of this state directory take the change over. Returns the users whom their configurations
/// name.
fn apply(state: &Path) -> Result<Vec<(u32, Name)>, Failure> {
    let mut configured = Vec::new();
    let answered = |pid, answer: Value| {
        let name = answer.as_str().and_then(|name| name.parse().ok());
        configured.extend(name.map(|name| (pid, name)));
        Ok(())
    };
    admin::ask_each(&admin::servers(state)?, &Request::Users, answered, |pid, e| {
        format!("the change is recorded, but the server with process number {pid} has not taken it over: {e}")
    })?;
    Ok(configured)
}

fn list_users(listing: &Listing, json: bool) -> Result<(), Failure> {
    let groups = listing.groups_by_user();
    let groups_of = |user: &Name| groups.get(user).map_or(&[][..], Vec::as_slice);
    if json {
        let users = listing.users.keys().map(|user| {
            let groups: Vec<_> = groups_of(user).iter().map(|group| group.as_str()).collect();
            let is_locked = listing.locked().any(|locked| locked == user);
            json!({"name": user.as_str(), "groups": groups, "locked": is_locked})
        });
        return print_json(users.collect());
    }
    let width = listing.users.keys().map(|user| user.as_str().chars().count()).max().unwrap_or(0);
    for user in listing.users.keys() {
        let mut line = format!("{:width$}  {}", user.as_str(), joined(groups_of(user).iter().copied()));
        if listing.locked().any(|locked| locked == user) {
            line += match &listing.key_fault {
                Some(_) => {
                    "  ! cannot log on: the key of the hashes is missing or another one: restore users.key from a backup"
                }
                None => "  ! needs a new password: weft user passwd",
            };
        }
        say!("{}", line.trim_end())?;
    }
    Ok(())
}

fn list_groups(listing: &Listing, json: bool) -> Result<(), Failure> {
    if json {
        let groups = listing.groups.iter().map(|(group, members)| {
            let members: Vec<_> = members.iter().map(Name::as_str).collect();
            json!({"name": group.as_str(), "members": members})
        });
        return print_json(groups.collect());
    }
    let width = listing.groups.keys().map(|group| group.as_str().chars().count()).max().unwrap_or(0);
    for (group, members) in &listing.groups {
        let line = format!("{:width$}  {}", group.as_str(), joined(members));
        say!("{}", line.trim_end())?;
    }
    Ok(())
}

fn print_json(values: Vec<serde_json::Value>) -> Result<(), Failure> {
    serde_json::to_writer_pretty(&mut crate::out::Stdout, &values)?;
    say!()?;
    Ok(())
}
