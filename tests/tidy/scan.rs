//! One parsed Rust file: every path, macro call and `unsafe` in it, inside macros too.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A path as it is written, `use` groups expanded.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    /// Its segments.
    pub(crate) segments: Vec<String>,
    /// Line, from 1.
    pub(crate) line: usize,
    /// Module it is written in, from the crate's root.
    pub(crate) module: Vec<String>,
    /// Inside `#[cfg(test)]`.
    pub(crate) test: bool,
    /// Followed by `!`.
    pub(crate) is_macro: bool,
}

/// One `unsafe` keyword.
#[derive(Clone, Debug)]
pub(crate) struct Unsafe {
    /// Line, from 1.
    pub(crate) line: usize,
    /// True for what needs an argument in a comment: blocks, impls and functions (not function types).
    pub(crate) argued: bool,
    /// A function, not a block or an impl.
    pub(crate) function: bool,
}

/// A parsed file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Path from the project's root.
    pub(crate) path: String,
    /// Lines of the text.
    pub(crate) lines: Vec<String>,
    /// All paths.
    pub(crate) names: Vec<Name>,
    /// All `unsafe`.
    pub(crate) unsafes: Vec<Unsafe>,
    /// First and last lines of test modules.
    tests: Vec<(usize, usize)>,
}

impl Source {
    /// Parses `text` as the file at `path`.
    pub(crate) fn parse(path: &str, text: &str) -> Source {
        let file = syn::parse_file(text).unwrap_or_else(|e| panic!("{path}: {e}"));
        let mut visitor =
            Visitor { module: module_of(path), test: is_test(&file.attrs), names: Vec::new(), tests: Vec::new() };
        visitor.visit_file(&file);
        let mut unsafes = Vec::new();
        // The whole text as tokens, so that an `unsafe` inside a macro is seen too.
        let tokens: TokenStream = text.parse().unwrap_or_else(|e| panic!("{path}: {e}"));
        collect_unsafe(tokens, &mut unsafes);
        Source {
            path: path.to_string(),
            lines: text.lines().map(str::to_string).collect(),
            names: visitor.names,
            unsafes,
            tests: visitor.tests,
        }
    }

    /// True for a line inside a test module.
    pub(crate) fn in_tests(&self, line: usize) -> bool {
        self.tests.iter().any(|(first, last)| (*first..=*last).contains(&line))
    }

    /// The layer: the first folder or file below `src/`; empty for the crate's roots.
    pub(crate) fn layer(&self) -> String {
        module_of(&self.path).first().cloned().unwrap_or_default()
    }
}

/// Module path of a file: `src/a/b.rs` and `src/a/b/mod.rs` are `a::b`; `src/lib.rs` is the root.
fn module_of(path: &str) -> Vec<String> {
    let inner = path.strip_prefix("src/").unwrap_or(path);
    let inner = inner.strip_suffix(".rs").unwrap_or(inner);
    let mut parts: Vec<String> = inner.split('/').map(str::to_string).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|a| {
        a.path().is_ident("test")
            || (a.path().is_ident("cfg")
                && matches!(&a.meta, syn::Meta::List(l) if l.tokens.to_string().split(|c: char| !c.is_alphanumeric())
                    .any(|w| w == "test") && !l.tokens.to_string().contains("not")))
    })
}

struct Visitor {
    module: Vec<String>,
    test: bool,
    names: Vec<Name>,
    tests: Vec<(usize, usize)>,
}

impl Visitor {
    fn push(&mut self, segments: Vec<String>, line: usize, is_macro: bool) {
        if !segments.is_empty() {
            let (module, test) = (self.module.clone(), self.test);
            self.names.push(Name { segments, line, module, test, is_macro });
        }
    }

    fn path(&mut self, path: &syn::Path, is_macro: bool) {
        let segments = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.push(segments, path.span().start().line, is_macro);
    }

    fn use_tree(&mut self, tree: &syn::UseTree, prefix: &[String]) {
        let with = |name: &syn::Ident| prefix.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>();
        match tree {
            syn::UseTree::Path(p) => self.use_tree(&p.tree, &with(&p.ident)),
            // `a::{self}` names `a`.
            syn::UseTree::Name(n) if n.ident == "self" => {
                self.push(prefix.to_vec(), n.ident.span().start().line, false)
            }
            syn::UseTree::Name(n) => self.push(with(&n.ident), n.ident.span().start().line, false),
            syn::UseTree::Rename(r) if r.ident == "self" => {
                self.push(prefix.to_vec(), r.ident.span().start().line, false);
            }
            syn::UseTree::Rename(r) => self.push(with(&r.ident), r.ident.span().start().line, false),
            syn::UseTree::Glob(g) => {
                let glob = prefix.iter().cloned().chain(["*".to_string()]).collect();
                self.push(glob, g.star_token.span().start().line, false);
            }
            syn::UseTree::Group(g) => g.items.iter().for_each(|t| self.use_tree(t, prefix)),
        }
    }

    /// Paths inside a macro's tokens: identifiers joined by `::`, groups after `::` expanded.
    fn tokens(&mut self, tokens: TokenStream, prefix: &[String]) {
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        let is = |i: usize, c: char| matches!(trees.get(i), Some(TokenTree::Punct(p)) if p.as_char() == c);
        let mut i = 0;
        while i < trees.len() {
            match &trees[i] {
                TokenTree::Ident(first) => {
                    let line = first.span().start().line;
                    let mut segments: Vec<String> = prefix.to_vec();
                    segments.push(first.to_string());
                    i += 1;
                    let mut group = None;
                    while is(i, ':') && is(i + 1, ':') {
                        match trees.get(i + 2) {
                            Some(TokenTree::Ident(next)) => segments.push(next.to_string()),
                            Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Brace => group = Some(g.stream()),
                            Some(TokenTree::Punct(p)) if p.as_char() == '*' => segments.push("*".to_string()),
                            _ => break,
                        }
                        i += 3;
                    }
                    let is_macro = is(i, '!') && !is(i + 1, '=');
                    match group {
                        Some(inner) => self.tokens(inner, &segments),
                        None => self.push(segments, line, is_macro),
                    }
                }
                TokenTree::Group(g) => {
                    self.tokens(g.stream(), &[]);
                    i += 1;
                }
                _ => i += 1,
            }
        }
    }
}

impl<'ast> Visit<'ast> for Visitor {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let before = self.test;
        self.test |= is_test(&item.attrs);
        if self.test {
            self.tests.push((item.span().start().line, item.span().end().line));
        }
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
        self.test = before;
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let before = self.test;
        self.test |= is_test(&item.attrs);
        visit::visit_item_fn(self, item);
        self.test = before;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.use_tree(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.path(path, false);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.path(&mac.path, true);
        self.tokens(mac.tokens.clone(), &[]);
    }
}

fn collect_unsafe(tokens: TokenStream, out: &mut Vec<Unsafe>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    for (i, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Group(g) => collect_unsafe(g.stream(), out),
            TokenTree::Ident(id) if id == "unsafe" => {
                // `unsafe fn(` and `unsafe extern "C" fn(` are types; `unsafe fn name` is a function.
                let named = trees[i + 1..].iter().take(4).any(|t| {
                    matches!(t, TokenTree::Ident(n)
                    if n != "fn" && n != "extern" && n != "impl")
                });
                let argued = match trees.get(i + 1) {
                    Some(TokenTree::Group(g)) => g.delimiter() == Delimiter::Brace,
                    Some(TokenTree::Ident(n)) if n == "impl" => true,
                    // `#[unsafe(no_mangle)]` and the like carry no block.
                    Some(TokenTree::Ident(n)) if n == "fn" => matches!(trees.get(i + 2), Some(TokenTree::Ident(_))),
                    Some(TokenTree::Ident(n)) if n == "extern" => named && !is_function_type(&trees[i + 1..]),
                    _ => false,
                };
                let block = matches!(trees.get(i + 1), Some(TokenTree::Group(_)));
                let function = !block && !matches!(trees.get(i + 1), Some(TokenTree::Ident(n)) if n == "impl");
                out.push(Unsafe { line: id.span().start().line, argued, function });
            }
            _ => {}
        }
    }
}

/// `extern "C" fn (`: a type; `extern "C" fn name (`: a function.
fn is_function_type(after: &[TokenTree]) -> bool {
    let at = after.iter().take(3).position(|t| matches!(t, TokenTree::Ident(n) if n == "fn"));
    at.is_some_and(|i| matches!(after.get(i + 1), Some(TokenTree::Group(_))))
}
