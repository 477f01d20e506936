//! The paths that sources name, followed through imports: after `use std::time as t`, `t::Instant` names
//! `std::time::Instant`. Imports count for their whole module, also those of functions: in doubt a path is refused.
//!
//! Not seen: code that macros of other crates make, names that a macro puts together, and values that methods return
//! (`metadata.modified()`).

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::TokenStream;
use syn::buffer::{Cursor, TokenBuffer};
use syn::ext::IdentExt as _;
use syn::parse::{ParseStream, Parser as _};
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, ItemExternCrate, ItemForeignMod, ItemMod, ItemUse, Lit, Macro, Path, UseTree};

/// A path in parts. An empty first part stands for a leading `::`.
type Parts = Vec<String>;

/// Paths that a world does not decide, each with the parts below it that are no matter of a world.
const BANNED: &[(&str, &[&str])] = &[
    ("std::sync", &["Arc", "Weak", "atomic"]),
    ("std::time", &["Duration"]),
    ("std::thread", &[]),
    ("std::thread_local", &[]),
    ("std::process", &[]),
    ("std::os::unix::process", &[]),
    ("std::hash::RandomState", &[]),
    ("std::collections::hash_map::RandomState", &[]),
    ("std::arch::asm", &[]),
    ("std::arch::global_asm", &[]),
    // Reads sources from anywhere.
    ("std::include", &[]),
    ("rustix", &["fs", "io", "net", "param", "process"]),
    ("rustix::process", &["Pid", "getegid", "geteuid"]),
    ("libc", &[]),
    ("jiff::Timestamp::now", &[]),
    ("jiff::Zoned::now", &[]),
    ("jiff::tz::TimeZone::system", &[]),
    ("jiff::tz::TimeZone::try_system", &[]),
];

/// Files of random bytes.
const BANNED_FILES: &[&str] = &["urandom", "dev/random"];

/// Crates that a world does not decide, with all whose names begin so (`crossbeam_channel`).
const BANNED_CRATES: &[&str] = &["parking_lot", "crossbeam", "rand", "getrandom", "fastrand"];

/// Whether a world does not decide a crate.
pub fn is_banned_crate(name: &str) -> bool {
    let mut banned = BANNED_CRATES.iter().filter_map(|banned| name.strip_prefix(banned));
    banned.any(|rest| rest.is_empty() || rest.starts_with(['_', '-']))
}

fn is_banned(path: &[String]) -> bool {
    let full = path.join("::");
    let mut banned = BANNED.iter().filter_map(|(banned, allowed)| Some((full.strip_prefix(banned)?, allowed)));
    path.first().is_some_and(|name| is_banned_crate(name))
        || banned.any(|(rest, allowed)| match rest.strip_prefix("::") {
            Some(below) => !allowed.iter().any(|allowed| below.split("::").next() == Some(allowed)),
            None => rest.is_empty() && allowed.is_empty(),
        })
}

/// The imports and paths of all sources, also across crates.
#[derive(Default)]
pub struct Sources {
    /// By module: each name that it imports, with its paths. Whole modules are imported under the name `*`.
    modules: BTreeMap<Parts, BTreeMap<String, Vec<Parts>>>,
    /// File, module and path.
    named: BTreeSet<(String, Parts, Parts)>,
    /// Files with other things that a world does not decide.
    others: BTreeSet<(String, String)>,
}

impl Sources {
    /// Adds a file. `module` begins with the name of its crate.
    pub fn read(&mut self, file: &str, module: &[&str], text: &str) {
        let module: Parts = module.iter().map(ToString::to_string).collect();
        self.modules.entry(module.clone()).or_default();
        let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{file}: {error}"));
        Reader { sources: self, file, module }.visit_file(&parsed);
    }

    /// Returns all that a world does not decide, with its file.
    pub fn refused(&self) -> BTreeSet<(String, String)> {
        let paths = self.named.iter().flat_map(|(file, module, path)| {
            let meant = self.meant(module, path).into_iter().filter(|path| is_banned(path));
            meant.map(|path| (file.clone(), path.join("::")))
        });
        paths.chain(self.others.iter().cloned()).collect()
    }

    /// Returns all paths that a path of a module can mean outside of the sources.
    fn meant(&self, module: &[String], path: &[String]) -> BTreeSet<Parts> {
        let mut meant = BTreeSet::new();
        let (mut seen, mut open) = (BTreeSet::new(), vec![(module.to_vec(), path.to_vec())]);
        while let Some((module, path)) = open.pop() {
            // `use name::name` would go on for ever.
            if path.len() > 16 || !seen.insert((module.clone(), path.clone())) {
                continue;
            }
            let rest = &path[1..];
            let full = match path[0].as_str() {
                "" => rest.to_vec(),
                "crate" => [&module[..1], rest].concat(),
                "super" => {
                    let parent = module[..module.len().max(2) - 1].to_vec();
                    open.push((parent, [&["self".to_owned()], rest].concat()));
                    continue;
                }
                // `self::super` is a module too.
                "self" if rest.first().is_some_and(|next| next == "super") => {
                    open.push((module, rest.to_vec()));
                    continue;
                }
                "self" => [&module, rest].concat(),
                _ => {
                    open.push((module.clone(), [&[String::new()], &*path].concat()));
                    [&*module, &*path].concat()
                }
            };
            let mut inner = (1..full.len()).rev().filter_map(|end| Some((end, self.modules.get(&full[..end])?)));
            if let Some((end, imports)) = inner.next() {
                let (name, after) = (&full[end], &full[end + 1..]);
                let by_name = imports.get(name).into_iter().flatten().map(|path| [path, after].concat());
                let by_whole = imports.get("*").into_iter().flatten().map(|path| [path, &full[end..]].concat());
                open.extend(by_name.chain(by_whole).map(|path| (full[..end].to_vec(), path)));
            }
            // Both are parts of std under another name.
            let is_std = full.first().is_some_and(|name| name == "core" || name == "alloc");
            meant.insert(if is_std { [&["std".to_owned()], &full[1..]].concat() } else { full });
        }
        meant
    }
}

fn text_of(ident: &Ident) -> String {
    ident.unraw().to_string()
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    let mut cfgs = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    cfgs.any(|cfg| cfg.parse_args::<Ident>().is_ok_and(|word| word == "test"))
}

/// Whether a module or file of this name has only tests.
pub fn is_name_of_tests(name: &str) -> bool {
    name.ends_with("tests")
}

/// Reads one file into the sources.
struct Reader<'a> {
    sources: &'a mut Sources,
    file: &'a str,
    module: Parts,
}

impl Reader<'_> {
    fn name(&mut self, mut path: Parts) {
        // A lone name means an import, or something of its module: never a crate.
        if path.len() == 1 {
            path.insert(0, "self".to_owned());
        }
        self.sources.named.insert((self.file.to_owned(), self.module.clone(), path));
    }

    fn refuse(&mut self, reason: String) {
        self.sources.others.insert((self.file.to_owned(), reason));
    }

    fn import(&mut self, name: String, path: Parts) {
        let named = [&[String::new()], &*path].concat();
        self.name(if path.len() == 1 { named } else { path.clone() });
        self.sources.modules.entry(self.module.clone()).or_default().entry(name).or_default().push(path);
    }

    fn import_tree(&mut self, tree: &UseTree, mut above: Parts) {
        let (ident, name) = match tree {
            UseTree::Path(path) => {
                above.push(text_of(&path.ident));
                return self.import_tree(&path.tree, above);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import_tree(tree, above.clone()));
            }
            UseTree::Glob(_) => return self.import("*".to_owned(), above),
            UseTree::Name(name) => (text_of(&name.ident), None),
            UseTree::Rename(rename) => (text_of(&rename.ident), Some(text_of(&rename.rename))),
        };
        // `a::{self}` imports `a`.
        if ident != "self" || above.is_empty() {
            above.push(ident);
        }
        let name = name.or_else(|| above.last().cloned()).expect("has a part");
        self.import(name, above);
    }

    /// Names a macro of std, which needs no import.
    fn name_macro(&mut self, path: &[String]) {
        if let [name] = path {
            self.name(["", "std", name].map(ToOwned::to_owned).to_vec());
        }
    }

    fn read_literal(&mut self, text: &str) {
        if BANNED_FILES.iter().any(|file| text.contains(file)) {
            self.refuse(text.to_owned());
        }
    }

    /// Reads the paths of tokens, whose meaning only their macro knows. `above` stands before them: `above::{…}`.
    fn read_tokens(&mut self, mut at: Cursor<'_>, above: &[String]) {
        while let Some((_, after)) = at.token_tree() {
            if at.ident().is_some_and(|(word, _)| word == "use")
                && let Ok(item) = first_use.parse2(at.token_stream())
            {
                self.visit_item_use(&item);
            }
            let (path, next, is_open) = first_path(at, above);
            let is_path = path.len() > above.len();
            at = if is_path { next } else { after };
            if is_path {
                let bang = next.punct().filter(|(punct, _)| punct.as_char() == '!');
                if bang.is_some_and(|(_, after)| after.any_group().is_some()) {
                    self.name_macro(&path);
                }
                self.name(path.clone());
                if let Some((inside, _, _, after)) = next.any_group().filter(|_| is_open) {
                    self.read_tokens(inside, &path);
                    at = after;
                }
            } else if let Some((inside, ..)) = next.any_group() {
                self.read_tokens(inside, &[]);
            } else if let Some((literal, _)) = next.literal() {
                self.read_literal(&literal.to_string());
            }
        }
    }
}

/// Parses the `use` at the start of tokens.
fn first_use(input: ParseStream<'_>) -> syn::Result<ItemUse> {
    let item = input.parse()?;
    // The parser wants to see all tokens read.
    input.parse::<TokenStream>()?;
    Ok(item)
}

/// Returns `above` with the path at the start of tokens, the rest, and whether the path ends in `::`.
fn first_path<'a>(at: Cursor<'a>, above: &[String]) -> (Parts, Cursor<'a>, bool) {
    let colon = |at: Cursor<'a>| at.punct().filter(|(punct, _)| punct.as_char() == ':').map(|(_, after)| after);
    let (mut path, mut at) = (above.to_vec(), at);
    let mut is_open = true;
    loop {
        if let Some(after) = colon(at).and_then(colon) {
            if path.is_empty() {
                path.push(String::new());
            }
            (at, is_open) = (after, true);
        }
        let Some((ident, after)) = at.ident().filter(|_| is_open) else { return (path, at, is_open) };
        path.push(text_of(&ident));
        (at, is_open) = (after, false);
    }
}

/// Visits nodes that are not for tests alone.
macro_rules! visit_unless_for_tests {
    ($($visit:ident: $node:ident),*) => {
        $(fn $visit(&mut self, node: &'ast syn::$node) {
            if !is_for_tests(&node.attrs) {
                visit::$visit(self, node);
            }
        })*
    };
}

impl<'ast> Visit<'ast> for Reader<'_> {
    visit_unless_for_tests! {
        visit_item_const: ItemConst, visit_item_enum: ItemEnum, visit_item_fn: ItemFn, visit_item_impl: ItemImpl,
        visit_item_macro: ItemMacro, visit_item_static: ItemStatic, visit_item_struct: ItemStruct,
        visit_item_trait: ItemTrait, visit_item_type: ItemType, visit_impl_item_const: ImplItemConst,
        visit_impl_item_fn: ImplItemFn, visit_trait_item_fn: TraitItemFn, visit_field: Field, visit_variant: Variant,
        visit_arm: Arm, visit_field_value: FieldValue, visit_local: Local, visit_stmt_macro: StmtMacro,
        visit_expr_block: ExprBlock
    }

    /// Documents may name anything.
    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if is_for_tests(&item.attrs) {
            return;
        }
        let name = text_of(&item.ident);
        let mut attributes = item.attrs.iter().map(Attribute::path);
        // Names alone tell the files of modules, and which of them are tests.
        if is_name_of_tests(&name) || attributes.any(|path| path.is_ident("path") || path.is_ident("cfg_attr")) {
            self.refuse(format!("mod {name}: it is named as tests, or lies elsewhere"));
        }
        self.module.push(name);
        self.sources.modules.entry(self.module.clone()).or_default();
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.import_tree(&item.tree, item.leading_colon.iter().map(|_| String::new()).collect());
        }
    }

    fn visit_item_extern_crate(&mut self, item: &'ast ItemExternCrate) {
        if !is_for_tests(&item.attrs) {
            let of = text_of(&item.ident);
            let name = item.rename.as_ref().map_or_else(|| of.clone(), |(_, name)| text_of(name));
            self.import(name, if of == "self" { vec!["crate".to_owned()] } else { vec![String::new(), of] });
        }
    }

    fn visit_item_foreign_mod(&mut self, _: &'ast ItemForeignMod) {
        self.refuse("extern block".to_owned());
    }

    fn visit_path(&mut self, path: &'ast Path) {
        let leading = path.leading_colon.iter().map(|_| String::new());
        self.name(leading.chain(path.segments.iter().map(|segment| text_of(&segment.ident))).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast Macro) {
        self.name_macro(&item.path.get_ident().map(text_of).into_iter().collect::<Parts>());
        visit::visit_macro(self, item);
    }

    /// Reads the tokens of macros, and of all else that syn does not know.
    fn visit_token_stream(&mut self, tokens: &'ast TokenStream) {
        self.read_tokens(TokenBuffer::new2(tokens.clone()).begin(), &[]);
    }

    fn visit_lit(&mut self, literal: &'ast Lit) {
        match literal {
            Lit::Str(text) => self.read_literal(&text.value()),
            Lit::ByteStr(text) => self.read_literal(&String::from_utf8_lossy(&text.value())),
            Lit::CStr(text) => self.read_literal(&text.value().to_string_lossy()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what a source of its own names that a world does not decide.
    fn refused(text: &str) -> Vec<String> {
        let mut sources = Sources::default();
        sources.read("a.rs", &["engine", "a"], text);
        sources.refused().into_iter().map(|(_, path)| path).collect()
    }

    #[test]
    fn names_of_the_system_are_refused_behind_imports_renames_and_macros() {
        let cases = [
            ("use std::{\n    sync::{\n        Mutex as StdMutex, Condvar,\n    },\n    time,\n};", "std::sync::Mutex"),
            ("use std::{sync::mpsc, thread as t, time};", "std::sync::mpsc"),
            ("use std::{sync::Arc, thread as t, time};", "std::thread"),
            ("use std::sync::{\n    Once, RwLock\n};", "std::sync::Once"),
            ("use std::sync::*; static A: OnceLock<u8> = OnceLock::new();", "std::sync::OnceLock"),
            ("use std::sync::{self as s}; type A = s::LazyLock<u8>;", "std::sync::LazyLock"),
            ("use std as s; fn f() { s::thread::spawn(f); }", "std::thread::spawn"),
            ("use r#std as s; fn f() { s::thread::spawn(f); }", "std::thread::spawn"),
            ("extern crate std as s; fn f() { s::thread::spawn(f); }", "std::thread::spawn"),
            ("use std as s; use s::thread as t;", "std::thread"),
            ("use {std as s}; mod b { fn f() { super::s::thread::spawn(f); } }", "std::thread::spawn"),
            ("use std as s; mod b { use super::*; fn f() { s::thread::spawn(f); } }", "std::thread::spawn"),
            ("mod b { pub use std as s; } fn f() { crate::a::b::s::thread::spawn(f); }", "std::thread::spawn"),
            ("fn f() { ::std::thread::spawn(f); }", "std::thread::spawn"),
            ("fn f() { use std::time; time::Instant::now(); }", "std::time::Instant::now"),
            ("fn f() { use a::thread; } fn g() { use std::*; thread::spawn(f); }", "std::thread::spawn"),
            ("use core as c; fn f() { c::arch::asm!(\"rdtsc\"); }", "std::arch::asm"),
            ("use std::time; fn f() { time::UNIX_EPOCH.elapsed(); }", "std::time::UNIX_EPOCH"),
            ("use std::time::*; struct A { at: Option<SystemTime> }", "std::time::SystemTime"),
            ("use std::time as t; impl A { const B: u8 = { t::Instant::now(); 0 }; }", "std::time::Instant::now"),
            ("thread_local! { static A: u8 = 0; }", "std::thread_local"),
            ("fn f() { std::thread_local! { static A: u8 = 0; } }", "std::thread_local"),
            ("use std::time; fn f() { println!(\"{:?}\", time::Instant::now()); }", "std::time::Instant::now"),
            ("fn f() { vec![vec![::std::thread::current()]]; }", "std::thread::current"),
            ("macro_rules! m { () => { use std::{fs, time as t}; t::Instant::now() } }", "std::time::Instant::now"),
            ("macro_rules! m { ($a:ident) => { use std::{sync::{Mutex as $a}, fs}; } }", "std::sync::Mutex"),
            ("macro_rules! m { () => { thread_local! { static A: u8 = 0; } } }", "std::thread_local"),
            ("fn f() { std::process::id(); }", "std::process::id"),
            ("use std::collections::hash_map::{Entry, RandomState};", "std::collections::hash_map::RandomState"),
            ("use crossbeam::channel;", "crossbeam::channel"),
            ("use crossbeam_channel as c;", "crossbeam_channel"),
            ("fn f() { parking_lot::Mutex::new(0); }", "parking_lot::Mutex::new"),
            ("fn f() { getrandom::fill(&mut []); }", "getrandom::fill"),
            ("use rand::random as r;", "rand::random"),
            ("use rustix as r; fn f() { r::time::clock_gettime(A); }", "rustix::time::clock_gettime"),
            ("fn f() { rustix::thread::nanosleep(&A); }", "rustix::thread::nanosleep"),
            ("fn f() { rustix::process::test_kill_process(A); }", "rustix::process::test_kill_process"),
            ("use jiff::{Timestamp, tz}; fn f() { Timestamp::now(); }", "jiff::Timestamp::now"),
            ("use jiff::tz::TimeZone as T; fn f() { T::system(); }", "jiff::tz::TimeZone::system"),
            ("fn f() { File::open(\"/dev/urandom\"); }", "/dev/urandom"),
            ("fn f() { open!(c\"/dev/random\"); }", "c\"/dev/random\""),
            ("include!(\"a.txt\");", "std::include"),
            ("unsafe extern \"C\" { fn pthread_self() -> u64; }", "extern block"),
            ("mod a_tests;", "mod a_tests: it is named as tests, or lies elsewhere"),
            ("#[path = \"tests/b.rs\"] mod b;", "mod b: it is named as tests, or lies elsewhere"),
            ("#[cfg(not(test))] use std::thread;", "std::thread"),
        ];
        for (text, path) in cases {
            assert!(refused(text).iter().any(|found| found == path), "{path} in {text}: {:?}", refused(text));
        }
    }

    #[test]
    fn names_are_followed_through_other_files_and_crates() {
        let mut sources = Sources::default();
        sources.read("a/lib.rs", &["a"], "pub mod b;");
        sources.read("a/b.rs", &["a", "b"], "pub use std::time as t;");
        sources.read("c/lib.rs", &["c"], "use a::b; fn f() { b::t::Instant::now(); }");
        let found = ("c/lib.rs".to_owned(), "std::time::Instant::now".to_owned());
        assert_eq!(sources.refused().into_iter().collect::<Vec<_>>(), [found]);
    }

    #[test]
    fn neighbours_and_tests_are_accepted() {
        let accepted = [
            "use std::{sync::{Arc, Weak, atomic::{AtomicU64, Ordering}}, time::Duration};",
            "use core::time::Duration; use std::{fs, io::{self, Read as _}, collections::hash_map::Entry};",
            "use std::{sync, time}; fn f(time: time::Duration) -> sync::Arc<u8> { g!(time, thread != 0) }",
            "use dedupfs_sync::{Mutex, clock::Instant, thread}; fn f() { Instant::now(); thread::spawn(f); }",
            "dedupfs_sync::thread_local! { static A: u8 = 0; }",
            "use rustix::{fs::openat, io::Errno, process::geteuid}; fn f() { rustix::param::page_size(); }",
            "use jiff::{Timestamp, tz::TimeZone}; fn f(zone: TimeZone) { Timestamp::from_second(0); zone.to_offset(a) }",
            "use mincdc::mincdc; fn f() { mincdc(0); let (rand, thread) = (0, 0); rand + thread }",
            "//! Not /dev/urandom, not std::thread.\n/// Nor `rand::random()`.\nfn f() { \"std::thread::spawn\"; }",
            "#[cfg(test)] mod tests { use std::thread; } #[cfg(test)] mod more_tests; #[cfg(test)] use std::thread as t;",
            "struct A { #[cfg(test)] a: std::thread::Thread } impl A { #[cfg(test)] fn f() { std::thread::yield_now() } }",
        ];
        for text in accepted {
            assert!(refused(text).is_empty(), "{:?} in {text}", refused(text));
        }
    }

    #[test]
    fn crates_are_known_by_the_start_of_their_names() {
        assert!(["rand", "rand_core", "crossbeam-channel", "getrandom"].into_iter().all(is_banned_crate));
        assert!(!["random_order", "dedupfs-sync", "randy"].into_iter().any(is_banned_crate));
    }
}
