//! Finds out which files of a crate import which, from their source.
//!
//! A path counts wherever it is written, in a `use` or in code, and leads to the file that defines the item:
//! re-exports are followed. Three things are not seen: method calls, because they name no path; macro expansions; and
//! test code, which is left out because it may use everything that it tests.

use std::collections::{BTreeMap, BTreeSet};

use super::tokens::{group, is_name, tokens, without_tests};

/// For each file, the files that it names, each with one of the paths used.
pub type Imports = BTreeMap<String, BTreeMap<String, String>>;

/// The imports between the files of the crate whose root is the file `root`. Paths from a file to its own submodules
/// are left out: a parent may use its children while they use its definitions.
pub fn imports(sources: &BTreeMap<String, String>, root: &str) -> Imports {
    let mut modules = Modules(BTreeMap::new());
    modules.read_file(sources, root.to_string(), Vec::new());
    let mut imports = Imports::new();
    for (at, module) in &modules.0 {
        for path in module.names.values().flatten().chain(&module.globs).chain(&module.paths) {
            let Some(Target::Module(target) | Target::Item(target)) = modules.resolve(at, path, DEPTH) else {
                continue;
            };
            let file = &modules.0[&target].file;
            if *file != module.file && !target.starts_with(&module.of_file) {
                let named = imports.entry(module.file.clone()).or_default();
                named.entry(file.clone()).or_insert_with(|| path.join("::"));
            }
        }
    }
    imports
}

/// The same with all files of `knot` merged into the first.
pub fn tie(imports: &Imports, knot: &[&str]) -> Imports {
    let tied = |file: &String| if knot.contains(&file.as_str()) { knot[0].to_string() } else { file.clone() };
    let mut all = Imports::new();
    for (file, named) in imports {
        let named = named.iter().map(|(other, path)| (tied(other), path.clone()));
        let named = named.filter(|(other, _)| *other != tied(file));
        all.entry(tied(file)).or_default().extend(named);
    }
    all
}

/// Whether imports lead from `file` to another of `knot` and back, within it.
pub fn circle_of(imports: &Imports, file: &str, knot: &[&str]) -> bool {
    let mut reached = BTreeSet::new();
    let mut next = vec![file];
    while let Some(at) = next.pop() {
        let named = imports.get(at).into_iter().flat_map(BTreeMap::keys).map(String::as_str);
        next.extend(named.filter(|other| knot.contains(other) && reached.insert(*other)));
    }
    reached.contains(file)
}

/// A cycle among `imports`, if there is one: each file names the next, and the last one the first.
pub fn cycle(imports: &Imports) -> Option<Vec<&str>> {
    let mut clear = BTreeSet::new();
    imports.keys().find_map(|file| walk(imports, file, &mut Vec::new(), &mut clear))
}

/// Continues from `file`, reached through `trail`. No cycle is reachable from the files in `clear`.
fn walk<'a>(
    imports: &'a Imports,
    file: &'a str,
    trail: &mut Vec<&'a str>,
    clear: &mut BTreeSet<&'a str>,
) -> Option<Vec<&'a str>> {
    if let Some(begins) = trail.iter().position(|passed| *passed == file) {
        return Some(trail.split_off(begins));
    }
    if clear.contains(file) {
        return None;
    }
    trail.push(file);
    let named = imports.get(file).into_iter().flat_map(BTreeMap::keys);
    for next in named {
        if let Some(found) = walk(imports, next, trail, clear) {
            return Some(found);
        }
    }
    trail.pop();
    clear.insert(file);
    None
}

/// Maximum number of re-exports followed in a row. No crate needs as many: the limit ends cycles.
const DEPTH: usize = 8;

/// The components of a path, or of a module from the crate's root.
type Path = Vec<String>;

/// The target of a path: a module, or an item in its defining module.
enum Target {
    Module(Path),
    Item(Path),
}

#[derive(Default)]
struct Module {
    file: String,
    /// The module of the whole file; this one may be an inline part of it.
    of_file: Path,
    /// Names brought in by `use`. A module and a function may share a name.
    names: BTreeMap<String, Vec<Path>>,
    /// Paths of `use path::*`.
    globs: Vec<Path>,
    /// The names of functions, types and constants.
    items: BTreeSet<String>,
    /// Paths in the code.
    paths: Vec<Path>,
}

/// The modules of a crate.
struct Modules(BTreeMap<Path, Module>);

impl Modules {
    fn read_file(&mut self, sources: &BTreeMap<String, String>, file: String, at: Path) {
        let tokens = without_tests(tokens(&sources[&file]));
        self.0.insert(at.clone(), Module { file, of_file: at.clone(), ..Module::default() });
        self.read(sources, &tokens, at);
    }

    /// Reads the tokens of the module `at`, whose file is known.
    fn read(&mut self, sources: &BTreeMap<String, String>, tokens: &[String], at: Path) {
        let mut i = 0;
        while i < tokens.len() {
            let token = |n: usize| tokens.get(i + n).map_or("", String::as_str);
            let module = self.0.get_mut(&at).unwrap();
            match token(0) {
                "mod" if is_name(token(1)) && token(2) == ";" => {
                    let child = below(&at, token(1));
                    let file = file_of(sources, module, &at, token(1));
                    self.read_file(sources, file, child);
                    i += 3;
                }
                "mod" if is_name(token(1)) && token(2) == "{" => {
                    let child = below(&at, token(1));
                    let (file, of_file) = (module.file.clone(), module.of_file.clone());
                    self.0.insert(child.clone(), Module { file, of_file, ..Module::default() });
                    let end = i + 2 + group(&tokens[i + 2..]);
                    self.read(sources, &tokens[i + 3..end - 1], child);
                    i = end;
                }
                // `use<'a>` names the captures of an `impl Trait`.
                "use" if token(1) != "<" => {
                    let end = i + tokens[i..].iter().position(|t| t == ";").expect("the end of a `use`");
                    module.bring_in(&tokens[i + 1..end], Vec::new());
                    i = end + 1;
                }
                "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" => {
                    module.items.extend(tokens.get(i + 1).cloned());
                    i += 1;
                }
                // The `::` after a generic type does not begin a path.
                "::" => i += 2,
                name if is_name(name) => {
                    let mut path = vec![name.to_string()];
                    i += 1;
                    while i + 1 < tokens.len() && tokens[i] == "::" && is_name(&tokens[i + 1]) {
                        path.push(tokens[i + 1].clone());
                        i += 2;
                    }
                    if path.len() > 1 {
                        module.paths.push(path);
                    }
                }
                _ => i += 1,
            }
        }
    }

    /// The target of `path` in the module `at`; `None` if it belongs to another crate.
    fn resolve(&self, at: &Path, path: &[String], depth: usize) -> Option<Target> {
        let mut place = at.clone();
        for (i, name) in path.iter().enumerate() {
            match name.as_str() {
                "self" => {}
                "crate" => place.clear(),
                "super" => drop(place.pop()),
                _ => match self.look_up(&place, name, depth) {
                    Some(Target::Module(module)) => place = module,
                    Some(item) => return Some(item),
                    None if i == 0 => return None,
                    // It comes from another crate or a macro, but this module names it.
                    None => return Some(Target::Item(place)),
                },
            }
        }
        Some(Target::Module(place))
    }

    fn look_up(&self, at: &Path, name: &str, depth: usize) -> Option<Target> {
        let depth = depth.checked_sub(1)?;
        let module = &self.0[at];
        let child = below(at, name);
        if self.0.contains_key(&child) {
            return Some(Target::Module(child));
        }
        if let Some(paths) = module.names.get(name) {
            return paths.iter().find_map(|path| self.resolve(at, path, depth));
        }
        if module.items.contains(name) {
            return Some(Target::Item(at.clone()));
        }
        module.globs.iter().find_map(|glob| match self.resolve(at, glob, depth)? {
            Target::Module(from) if from != *at => self.look_up(&from, name, depth),
            _ => None,
        })
    }
}

impl Module {
    /// Adds the tree of a `use` after `prefix`.
    fn bring_in(&mut self, tree: &[String], prefix: Path) {
        let mut path = prefix;
        let mut i = 0;
        while i < tree.len() {
            match tree[i].as_str() {
                "::" => i += 1,
                "*" => return self.globs.push(path),
                "{" => {
                    let mut rest = &tree[i + 1..i + group(&tree[i..]) - 1];
                    while !rest.is_empty() {
                        let (branch, behind) = rest.split_at(branch(rest));
                        self.bring_in(branch, path.clone());
                        rest = behind.get(1..).unwrap_or(&[]);
                    }
                    return;
                }
                "as" => return self.names.entry(tree[i + 1].clone()).or_default().push(path),
                "self" if !path.is_empty() => i += 1,
                name => {
                    path.push(name.to_string());
                    i += 1;
                }
            }
        }
        if let Some(name) = path.last().cloned() {
            self.names.entry(name).or_default().push(path);
        }
    }
}

/// The number of tokens in the first branch of a `use` tree.
fn branch(tree: &[String]) -> usize {
    let mut i = 0;
    while i < tree.len() && tree[i] != "," {
        i += if tree[i] == "{" { group(&tree[i..]) } else { 1 };
    }
    i
}

fn below(at: &Path, name: &str) -> Path {
    at.iter().cloned().chain([name.to_string()]).collect()
}

/// The file of `mod name;` in `module`, which is at `at`.
fn file_of(sources: &BTreeMap<String, String>, module: &Module, at: &Path, name: &str) -> String {
    let (folder, stem) = module.file.rsplit_once('/').expect("a file in a folder");
    let stem = stem.trim_end_matches(".rs");
    let mut folder = folder.to_string();
    if !["lib", "main", "mod"].contains(&stem) {
        folder = format!("{folder}/{stem}");
    }
    for inline in &at[module.of_file.len()..] {
        folder = format!("{folder}/{inline}");
    }
    let files = [format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")];
    let found = files.iter().find(|file| sources.contains_key(*file));
    found.unwrap_or_else(|| panic!("{}: `mod {name};` has no file", module.file)).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cycle in a crate of these files.
    fn cycle_of(files: &[(&str, &str)]) -> Option<Vec<String>> {
        let sources = files.iter().map(|(name, text)| (format!("src/{name}"), (*text).to_string())).collect();
        let imports = imports(&sources, "src/lib.rs");
        cycle(&imports).map(|cycle| cycle.into_iter().map(str::to_string).collect())
    }

    fn both(cycle: Option<Vec<String>>) {
        assert_eq!(cycle.expect("a cycle"), ["src/a.rs", "src/b.rs"]);
    }

    #[test]
    fn a_cycle_shows_however_its_paths_are_written() {
        let root = ("lib.rs", "mod a;\nmod b;");
        let to_b = "use crate::b::B;\npub struct A;";
        both(cycle_of(&[root, ("a.rs", to_b), ("b.rs", "use super::a::{A as Other, *};\npub struct B;")]));
        both(cycle_of(&[root, ("a.rs", to_b), ("b.rs", "pub struct B;\nfn f() -> super::a::A { todo!() }")]));
        both(cycle_of(&[root, ("a.rs", to_b), ("b.rs", "use super::a;\npub struct B(a::A);")]));
        let inline = "pub struct B;\npub mod inner { use super::super::a::A; }";
        both(cycle_of(&[root, ("a.rs", to_b), ("b.rs", inline)]));
    }

    #[test]
    fn a_re_export_is_followed_to_the_file_that_defines() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub use a::A;\npub use b::*;"),
            ("a.rs", "use crate::B;\npub struct A;"),
            ("b.rs", "use crate::A;\npub struct B;"),
        ];
        both(cycle_of(&files));
    }

    #[test]
    fn a_parent_uses_its_children_and_they_use_it() {
        let child = "use super::Shared;\npub struct A(Shared);";
        let root = "mod a;\nmod b;\nuse a::A;\npub struct Shared;";
        assert_eq!(cycle_of(&[("lib.rs", root), ("a.rs", child), ("b.rs", "use crate::a::A;")]), None);
        // A child that is reached from its parent's own imports is in a circle.
        let files = [
            ("lib.rs", "mod a;\nmod b;"),
            ("a/mod.rs", "mod child;\nuse crate::b::B;\npub struct Shared;"),
            ("a/child.rs", "use super::Shared;\npub struct Child;"),
            ("b.rs", "use crate::a::child::Child;\npub struct B;"),
        ];
        let cycle = cycle_of(&files).expect("a cycle");
        assert_eq!(cycle, ["src/a/child.rs", "src/a/mod.rs", "src/b.rs"]);
    }

    #[test]
    fn a_knot_counts_as_one_file() {
        let imports: Imports = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "d")].iter().fold(
            Imports::new(),
            |mut all, (from, to)| {
                all.entry(from.to_string()).or_default().insert(to.to_string(), String::new());
                all
            },
        );
        assert!(circle_of(&imports, "a", &["a", "b"]) && !circle_of(&imports, "c", &["b", "c"]));
        assert_eq!(cycle(&tie(&imports, &["a", "b"])), None);
        // A circle through another file is still one.
        assert_eq!(cycle(&tie(&imports, &["a", "c"])), Some(vec!["a", "b"]));
    }

    #[test]
    fn tests_comments_and_literals_import_nothing() {
        let b = r##"
            // use crate::a::A;
            /* use crate::a::A; */
            const TEXT: (&str, char) = (r#"use crate::a::A; " "#, '"');
            #[cfg(test)]
            use crate::a::A;
            #[cfg(test)]
            mod tests {
                use crate::a::A;
            }
            pub struct B<'a>(&'a str);
        "##;
        assert_eq!(
            cycle_of(&[
                ("lib.rs", "mod a;\nmod b;"),
                ("a.rs", "use crate::b::B;\npub struct A;"),
                ("b.rs", b)
            ]),
            None
        );
    }
}
