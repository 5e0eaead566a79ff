//! Splits Rust source into tokens: names, `::` and single characters, without comments, literals and test code.

/// The tokens of `text`. Literals are left out, because they contain no paths.
pub fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").expect("the end of a comment") + 2
        } else if let Some(len) = literal(rest) {
            len
        } else if first == '_' || first.is_alphabetic() {
            let len = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
            tokens.push(rest[..len].to_string());
            len
        } else if first.is_whitespace() {
            first.len_utf8()
        } else {
            let len = if rest.starts_with("::") { 2 } else { first.len_utf8() };
            tokens.push(rest[..len].to_string());
            len
        };
        rest = &rest[len..];
    }
    tokens
}

/// The length of the literal or lifetime at the start of `rest`.
fn literal(rest: &str) -> Option<usize> {
    let sign = rest.find(|c: char| !"bcr#".contains(c))?;
    let (prefix, body) = rest.split_at(sign);
    if body.starts_with('"') && (prefix.is_empty() || !prefix.starts_with('#')) {
        if prefix.contains('r') {
            let end = format!("\"{}", "#".repeat(prefix.matches('#').count()));
            return Some(sign + 1 + body[1..].find(&end)? + end.len());
        }
        return quoted(body, '"').map(|len| sign + len);
    }
    if body.starts_with('\'') && matches!(prefix, "" | "b") {
        let lifetime = body[1..].find(|c: char| c != '_' && !c.is_alphanumeric())?;
        let character = body[1 + lifetime..].starts_with('\'') || lifetime == 0;
        return if character { quoted(body, '\'').map(|len| sign + len) } else { Some(sign + 1 + lifetime) };
    }
    let digits = rest.starts_with(|c: char| c.is_ascii_digit());
    digits.then(|| rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len()))
}

/// The length of text between two `quote`s, including both.
fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().skip(1).find_map(|(at, c)| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at + 1)
    })
}

pub fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c == '_' || c.is_alphabetic())
}

/// The number of tokens in the group at the start of `tokens`, including its brackets.
pub fn group(tokens: &[String]) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    panic!("a bracket without an end")
}

/// `tokens` without items that exist only for tests and fuzz targets.
pub fn without_tests(tokens: Vec<String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut rest = tokens.as_slice();
    while let Some(first) = rest.first() {
        if first == "#" && rest.get(1).is_some_and(|t| t == "[") {
            let (attribute, behind) = rest.split_at(1 + group(&rest[1..]));
            rest = if for_tests(attribute) { &behind[item(behind)..] } else { behind };
            continue;
        }
        kept.push(first.clone());
        rest = &rest[1..];
    }
    kept
}

/// Whether an attribute is `cfg(test)` or `cfg(any(test, fuzzing))`.
fn for_tests(attribute: &[String]) -> bool {
    let words: Vec<&str> = attribute.iter().map(String::as_str).filter(|token| is_name(token)).collect();
    matches!(words[..], ["cfg", "test"] | ["cfg", "any", "test", "fuzzing"] | ["cfg", "fuzzing"])
}

/// The number of tokens of an item, a field, or a `match` arm.
fn item(tokens: &[String]) -> usize {
    let keywords = [
        "async",
        "const",
        "enum",
        "fn",
        "impl",
        "macro_rules",
        "mod",
        "static",
        "struct",
        "trait",
        "type",
        "use",
    ];
    let mut keyword = None;
    let mut i = 0;
    while i < tokens.len() {
        match tokens[i].as_str() {
            ";" => return i + 1,
            "," if keyword.is_none() => return i + 1,
            "}" => return i,
            "{" if keyword != Some("use") => return i + group(&tokens[i..]),
            "(" | "[" | "{" => i += group(&tokens[i..]),
            token => {
                keyword = keyword.or(keywords.into_iter().find(|k| *k == token));
                i += 1;
            }
        }
    }
    i
}
