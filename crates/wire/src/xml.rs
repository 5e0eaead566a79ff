//! The part of XML 1.0 with namespaces that SOAP messages use (SOAP 1.2 part 1, 5): elements, attributes, text.
//!
//! Document types, processing instructions and CDATA are refused: SOAP forbids the first two, and no peer sends the
//! third. So no entity but the five predefined ones exists, and nothing expands. A document becomes a tree of bounded size and
//! depth; attributes other than namespaces are skipped.

use std::rc::Rc;

/// Deepest element.
pub const MAX_DEPTH: usize = 16;
/// Most elements.
pub const MAX_ELEMENTS: usize = 128;
/// Most attributes of an element, with namespaces.
pub const MAX_ATTRIBUTES: usize = 32;

/// Why text is not a document that is read here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// It is not UTF-8.
    #[error("it is not UTF-8")]
    Encoding,
    /// It ends too early, or is not XML.
    #[error("it is not well-formed")]
    Syntax,
    /// A document type, processing instruction or CDATA section.
    #[error("it has markup that SOAP does not allow")]
    Forbidden,
    /// A prefix without a namespace.
    #[error("a prefix has no namespace")]
    Prefix,
    /// An entity that is not predefined.
    #[error("an entity that is not predefined")]
    Entity,
    /// More elements, depth or attributes than the limits.
    #[error("more than {MAX_ELEMENTS} elements, {MAX_DEPTH} levels or {MAX_ATTRIBUTES} attributes")]
    TooMuch,
}

/// An element.
#[derive(Clone, Debug)]
pub struct Element {
    /// Its namespace; empty if it has none.
    pub namespace: Rc<str>,
    /// Its local name.
    pub name: String,
    /// The text in it, without that of its children.
    pub text: String,
    /// The elements in it.
    pub children: Vec<Element>,
    scope: Rc<Scope>,
}

/// The namespaces of an element, and those of the element around it.
#[derive(Debug, Default)]
struct Scope {
    declared: Vec<(String, Rc<str>)>,
    outer: Option<Rc<Scope>>,
}

impl Scope {
    fn find(&self, prefix: &str) -> Option<Rc<str>> {
        let mut scope = Some(self);
        while let Some(here) = scope {
            if let Some((_, namespace)) = here.declared.iter().find(|(declared, _)| declared == prefix) {
                return Some(namespace.clone());
            }
            scope = here.outer.as_deref();
        }
        prefix.is_empty().then(|| "".into())
    }
}

impl Element {
    /// Whether it has this name.
    #[must_use]
    pub fn is(&self, namespace: &str, name: &str) -> bool {
        self.name == name && *self.namespace == *namespace
    }

    /// The first element in it of this name.
    #[must_use]
    pub fn child(&self, namespace: &str, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.is(namespace, name))
    }

    /// The qualified names in its text, separated by white space (xs:QName): namespaces and local names. `None` if a
    /// prefix has no namespace.
    #[must_use]
    pub fn names(&self) -> Option<Vec<(Rc<str>, &str)>> {
        let resolved = |word| {
            let (prefix, name) = split(word);
            Some((self.scope.find(prefix)?, name))
        };
        self.text.split_ascii_whitespace().map(resolved).collect()
    }
}

/// The prefix, which may be empty, and the local name.
fn split(name: &str) -> (&str, &str) {
    name.split_once(':').unwrap_or(("", name))
}

/// The root element of a document.
///
/// # Errors
/// It is not well-formed, or larger than the limits.
pub fn parse(bytes: &[u8]) -> Result<Element, Malformed> {
    let text = std::str::from_utf8(bytes).map_err(|_| Malformed::Encoding)?;
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    // Not a processing instruction whose name begins so.
    let begins = |rest: &&str| rest.starts_with(|c: char| c.is_ascii_whitespace());
    if let Some(declaration) = rest.strip_prefix("<?xml").filter(begins) {
        let (declaration, after) = declaration.split_once("?>").ok_or(Malformed::Syntax)?;
        let lower = declaration.to_ascii_lowercase();
        if lower.contains("encoding") && !lower.contains("utf-8") {
            return Err(Malformed::Encoding);
        }
        rest = after;
    }
    let mut reader = Reader { rest, elements: 0, open: Vec::new() };
    let root = reader.document()?;
    match reader.rest.trim_start().is_empty() {
        true => Ok(root),
        false => Err(Malformed::Syntax),
    }
}

struct Reader<'a> {
    rest: &'a str,
    elements: usize,
    /// The elements that have begun, each with its name as written.
    open: Vec<(&'a str, Element)>,
}

impl<'a> Reader<'a> {
    fn document(&mut self) -> Result<Element, Malformed> {
        loop {
            let (text, markup) = self.rest.split_once('<').ok_or(Malformed::Syntax)?;
            match self.open.last_mut() {
                Some((_, element)) => unescape(text, &mut element.text)?,
                None if text.trim().is_empty() => {}
                None => return Err(Malformed::Syntax),
            }
            let ended = if let Some(comment) = markup.strip_prefix("!--") {
                self.rest = comment.split_once("-->").ok_or(Malformed::Syntax)?.1;
                None
            } else if markup.starts_with(['!', '?']) {
                return Err(Malformed::Forbidden);
            } else if let Some(end) = markup.strip_prefix('/') {
                let (name, after) = end.split_once('>').ok_or(Malformed::Syntax)?;
                self.rest = after;
                let (opened, element) = self.open.pop().ok_or(Malformed::Syntax)?;
                if opened != name.trim_end() {
                    return Err(Malformed::Syntax);
                }
                Some(element)
            } else {
                self.start(markup)?
            };
            let Some(element) = ended else { continue };
            match self.open.last_mut() {
                Some((_, outer)) => outer.children.push(element),
                None => return Ok(element),
            }
        }
    }

    /// Reads a start tag; returns the element if it is empty.
    fn start(&mut self, markup: &'a str) -> Result<Option<Element>, Malformed> {
        self.elements = self.elements.saturating_add(1);
        if self.elements > MAX_ELEMENTS || self.open.len() >= MAX_DEPTH {
            return Err(Malformed::TooMuch);
        }
        let (name, mut rest) = word(markup)?;
        let mut declared: Vec<(String, Rc<str>)> = Vec::new();
        let mut prefixes = Vec::new();
        let mut attributes = 0usize;
        let is_empty = loop {
            let trimmed = rest.trim_start();
            if let Some(after) = trimmed.strip_prefix("/>") {
                self.rest = after;
                break true;
            }
            if let Some(after) = trimmed.strip_prefix('>') {
                self.rest = after;
                break false;
            }
            attributes = attributes.saturating_add(1);
            if attributes > MAX_ATTRIBUTES {
                return Err(Malformed::TooMuch);
            }
            let (attribute, after) = word(trimmed)?;
            // White space stands before each attribute.
            if trimmed.len() == rest.len() {
                return Err(Malformed::Syntax);
            }
            let after = after.trim_start().strip_prefix('=').ok_or(Malformed::Syntax)?.trim_start();
            let quote = after.chars().next().filter(|c| matches!(c, '"' | '\'')).ok_or(Malformed::Syntax)?;
            let (raw, after) =
                after.get(1..).and_then(|value| value.split_once(quote)).ok_or(Malformed::Syntax)?;
            if raw.contains('<') {
                return Err(Malformed::Syntax);
            }
            let mut value = String::new();
            unescape(raw, &mut value)?;
            match attribute.split_once(':') {
                Some(("xmlns", prefix)) => declared.push((prefix.to_owned(), value.into())),
                None if attribute == "xmlns" => declared.push((String::new(), value.into())),
                // Declared by the specification (Namespaces in XML 1.0, 3).
                Some(("xml", _)) | None => {}
                Some((prefix, _)) => prefixes.push(prefix),
            }
            rest = after;
        };
        let outer = self.open.last().map(|(_, element)| element.scope.clone());
        let scope = match outer {
            Some(outer) if declared.is_empty() => outer,
            outer => Rc::new(Scope { declared, outer }),
        };
        if prefixes.iter().any(|prefix| scope.find(prefix).is_none()) {
            return Err(Malformed::Prefix);
        }
        let (prefix, local) = split(name);
        let namespace = scope.find(prefix).ok_or(Malformed::Prefix)?;
        let (text, children) = (String::new(), Vec::new());
        let element = Element { namespace, name: local.to_owned(), text, children, scope };
        if is_empty {
            return Ok(Some(element));
        }
        self.open.push((name, element));
        Ok(None)
    }
}

/// A name at the beginning, and the rest.
fn word(text: &str) -> Result<(&str, &str), Malformed> {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, ':' | '_' | '-' | '.');
    let end = text.find(|c| !is_name(c)).ok_or(Malformed::Syntax)?;
    match text.split_at_checked(end) {
        Some((name, rest)) if !name.is_empty() => Ok((name, rest)),
        _ => Err(Malformed::Syntax),
    }
}

/// Adds text to `out`, with its entities replaced.
fn unescape(text: &str, out: &mut String) -> Result<(), Malformed> {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let (entity, after) = after.split_once(';').ok_or(Malformed::Entity)?;
        let number = |digits: &str, radix| {
            let code = u32::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'));
            code.and_then(char::from_u32).filter(|c| *c != '\0')
        };
        let replaced = match entity {
            "amp" => Some('&'),
            "lt" => Some('<'),
            "gt" => Some('>'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => match entity.strip_prefix("#x") {
                Some(digits) => number(digits, 16),
                None => entity.strip_prefix('#').and_then(|digits| number(digits, 10)),
            },
        };
        out.push(replaced.ok_or(Malformed::Entity)?);
        rest = after;
    }
    out.push_str(rest);
    Ok(())
}

/// Text as a document has it; characters that XML does not allow become U+FFFD.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() && !matches!(c, '\t' | '\n' | '\r') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_have_their_namespaces() {
        let text = "\u{feff}<?xml version='1.0' encoding='UTF-8'?>\n<!-- hi --><a:x xmlns:a='urn:a' xmlns=\"urn:d\">\
                    <y b='1'>one &amp;&#x20;two<!-- - --></y><a:z xmlns:a='urn:b'> a:p q\n</a:z></a:x >\n";
        let root = parse(text.as_bytes()).unwrap();
        assert!(root.is("urn:a", "x") && root.children.len() == 2);
        assert_eq!(root.child("urn:d", "y").unwrap().text, "one & two");
        let names = root.child("urn:b", "z").unwrap().names().unwrap();
        let names: Vec<_> = names.iter().map(|(space, name)| (&**space, *name)).collect();
        assert_eq!(names, [("urn:b", "p"), ("urn:d", "q")]);
        assert!(parse(b"<x>p:q</x>").unwrap().names().is_none());
    }

    #[test]
    fn what_soap_does_not_allow_is_refused() {
        let refused = |text: &str| parse(text.as_bytes()).unwrap_err();
        let bomb = "<!DOCTYPE x [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]><x>&b;</x>";
        assert_eq!(refused(bomb), Malformed::Forbidden);
        assert_eq!(refused("<x><![CDATA[1]]></x>"), Malformed::Forbidden);
        assert_eq!(refused("<?xml-stylesheet href='a'?><x/>"), Malformed::Forbidden);
        assert_eq!(refused("<x>&b;</x>"), Malformed::Entity);
        assert_eq!(refused("<x>&#0;</x>"), Malformed::Entity);
        assert_eq!(refused("<x>&#xd800;</x>"), Malformed::Entity);
        assert_eq!(refused("<a:x/>"), Malformed::Prefix);
        assert_eq!(refused("<x a:b='1'/>"), Malformed::Prefix);
        assert_eq!(refused("<?xml version='1.0' encoding='UTF-16'?><x/>"), Malformed::Encoding);
        assert_eq!(parse(b"<x>\xff</x>").unwrap_err(), Malformed::Encoding);
        for syntax in [
            "",
            "x",
            "<x>",
            "<x></y>",
            "<x/><y/>",
            "<x a=1/>",
            "<x a='1/>",
            "</x>",
            "< x/>",
            "<x a='<'/>",
            "<x a='1'b='2'/>",
        ] {
            assert_eq!(refused(syntax), Malformed::Syntax, "{syntax}");
        }
    }

    #[test]
    fn size_and_depth_are_limited() {
        let nested = |depth: usize| "<x>".repeat(depth) + &"</x>".repeat(depth);
        assert!(parse(nested(MAX_DEPTH).as_bytes()).is_ok());
        assert_eq!(parse(nested(MAX_DEPTH + 1).as_bytes()).unwrap_err(), Malformed::TooMuch);
        assert_eq!(parse(nested(100_000).as_bytes()).unwrap_err(), Malformed::TooMuch);
        let wide = |count: usize| format!("<x>{}</x>", "<y/>".repeat(count - 1));
        assert!(parse(wide(MAX_ELEMENTS).as_bytes()).is_ok());
        assert_eq!(parse(wide(MAX_ELEMENTS + 1).as_bytes()).unwrap_err(), Malformed::TooMuch);
        let attributes = |count: usize| format!("<x{}/>", " a='1'".repeat(count));
        assert!(parse(attributes(MAX_ATTRIBUTES).as_bytes()).is_ok());
        assert_eq!(parse(attributes(MAX_ATTRIBUTES + 1).as_bytes()).unwrap_err(), Malformed::TooMuch);
    }

    #[test]
    fn escaped_text_comes_back() {
        let text = "a<b> & \"c\" 'd'";
        assert_eq!(parse(format!("<x>{}</x>", escaped(text)).as_bytes()).unwrap().text, text);
        assert_eq!(escaped("a\0b"), "a\u{fffd}b");
    }
}
