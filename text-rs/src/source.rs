//! Prepares a template's text for minijinja's parser: what Jinja2 or transformers read differently
//! is rewritten, and what would recurse too deeply is refused. Everything else is copied.

const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Chains such as `a.b.c` or `x|f|g` nest the syntax tree once a link, and the parser has no bound.
const TAG_TOKENS_MAX: usize = 8192;
const ELIF_MAX: usize = 2048;

/// The text to parse, or why the template can't be used.
pub fn prepare(source: &str) -> Result<String, String> {
    if source.len() > SOURCE_BYTES_MAX {
        return Err(format!(
            "the template has {} bytes; {SOURCE_BYTES_MAX} is the limit",
            source.len()
        ));
    }
    let text = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut scan = Scan { text: &text, at: 0, out: String::with_capacity(text.len()), elifs: 0 };
    scan.run()?;
    Ok(scan.out)
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
    out: String,
    elifs: usize,
}

impl<'a> Scan<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn copy(&mut self, bytes: usize) {
        self.out.push_str(&self.text[self.at..self.at + bytes]);
        self.at += bytes;
    }

    fn run(&mut self) -> Result<(), String> {
        loop {
            let rest = self.rest();
            let opener = rest.match_indices('{').find(|(i, _)| {
                matches!(rest.as_bytes().get(i + 1), Some(b'{' | b'%' | b'#'))
            });
            let Some((start, _)) = opener else {
                self.copy(rest.len());
                return Ok(());
            };
            self.copy(start);
            match self.rest().as_bytes()[1] {
                b'#' => {
                    let end = self.rest().find("#}").map_or(self.rest().len(), |e| e + 2);
                    self.copy(end);
                }
                b'{' => self.tag("}}")?,
                _ if self.is_raw() => self.raw(),
                _ => self.block()?,
            }
        }
    }

    /// The first word of the block tag here, and where it starts.
    fn first_word(&self) -> (usize, &'a str) {
        let rest = self.rest();
        let body = rest[2..].trim_start_matches(['-', '+']).trim_start();
        let start = rest.len() - body.len();
        let length = body.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        (start, &body[..length.unwrap_or(body.len())])
    }

    fn is_raw(&self) -> bool {
        self.first_word().1 == "raw"
    }

    /// Copies `{% raw %} … {% endraw` unread.
    fn raw(&mut self) {
        let rest = self.rest();
        let mut from = 2;
        while let Some(found) = rest[from..].find("{%") {
            from += found + 2;
            let body = rest[from..].trim_start_matches(['-', '+']).trim_start();
            if body.starts_with("endraw") {
                let end = rest[from..].find("%}").map_or(rest.len(), |e| from + e + 2);
                self.copy(end);
                return;
            }
        }
        self.copy(rest.len());
    }

    fn block(&mut self) -> Result<(), String> {
        let (start, word) = self.first_word();
        // transformers' blocks for training masks write their body; so does an empty `with`.
        let replacement = match word {
            "generation" => Some("with"),
            "endgeneration" => Some("endwith"),
            _ => None,
        };
        if word == "elif" {
            self.elifs += 1;
            if self.elifs > ELIF_MAX {
                return Err(format!("more than {ELIF_MAX} elif tags"));
            }
        }
        if let Some(replacement) = replacement {
            self.copy(start);
            self.out.push_str(replacement);
            self.at += word.len();
            let rest = self.rest();
            let end = rest.find("%}").map_or(rest.len(), |e| e + 2);
            self.copy(end);
            return Ok(());
        }
        self.tag("%}")
    }

    /// Copies a tag up to its end, which does not count inside strings and brackets.
    fn tag(&mut self, end: &str) -> Result<(), String> {
        self.copy(2);
        let mut depth = 0usize;
        let mut tokens = 0usize;
        let mut in_word = false;
        while let Some(c) = self.rest().chars().next() {
            if depth == 0 && self.rest().starts_with(end) {
                self.copy(2);
                return Ok(());
            }
            let word = c.is_alphanumeric() || c == '_';
            if (word && !in_word) || !(word || c.is_whitespace()) {
                tokens += 1;
            }
            in_word = word;
            match c {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                '\'' | '"' => {
                    self.string(c)?;
                    continue;
                }
                _ => {}
            }
            if tokens > TAG_TOKENS_MAX {
                return Err(format!("a tag has more than {TAG_TOKENS_MAX} tokens"));
            }
            self.copy(c.len_utf8());
        }
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<(), String> {
        let rest = self.rest();
        let mut escaped = false;
        let mut has_escape = false;
        for (i, c) in rest.char_indices().skip(1) {
            if escaped {
                escaped = false;
            } else if c == '\\' {
                escaped = true;
                has_escape = true;
            } else if c == quote {
                if has_escape {
                    let plain = unescape(&rest[1..i])?;
                    let safe = plain.replace('\\', "\\\\").replace('"', "\\\"");
                    self.out.push('"');
                    self.out.push_str(&safe);
                    self.out.push('"');
                    self.at += i + 1;
                } else {
                    self.copy(i + 1);
                }
                return Ok(());
            }
        }
        self.copy(rest.len()); // the parser says that the string doesn't end
        Ok(())
    }
}

/// Python's escapes in string literals; a backslash before any other character stays.
fn unescape(literal: &str) -> Result<String, String> {
    let mut out = String::with_capacity(literal.len());
    let mut chars = literal.chars().peekable();
    let mut high: Option<u32> = None;
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let Some(kind) = chars.next() else { break };
        let simple = match kind {
            '\n' => continue,
            '\\' | '\'' | '"' => Some(kind),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'a' => Some('\u{7}'),
            'b' => Some('\u{8}'),
            'f' => Some('\u{c}'),
            'v' => Some('\u{b}'),
            _ => None,
        };
        if let Some(simple) = simple {
            out.push(simple);
            continue;
        }
        let (radix, digits) = match kind {
            'x' => (16, 2),
            'u' => (16, 4),
            'U' => (16, 8),
            '0'..='7' => (8, 3),
            _ => {
                out.push('\\');
                out.push(kind);
                continue;
            }
        };
        let mut number = if radix == 8 { kind.to_digit(8).unwrap_or(0) } else { 0 };
        let mut read = usize::from(radix == 8);
        while read < digits {
            let Some(digit) = chars.peek().and_then(|c| c.to_digit(radix)) else { break };
            number = number.wrapping_mul(radix).wrapping_add(digit);
            chars.next();
            read += 1;
        }
        if radix == 16 && read < digits {
            return Err(format!("truncated \\{kind} escape in a string"));
        }
        match (number, high) {
            (0xd800..=0xdbff, _) => high = Some(number),
            (0xdc00..=0xdfff, Some(h)) => {
                high = None;
                let joined = 0x10000 + ((h - 0xd800) << 10) + (number - 0xdc00);
                out.extend(char::from_u32(joined));
            }
            _ => {
                let c = char::from_u32(number);
                out.push(c.ok_or_else(|| format!("\\{kind} escape is no character"))?);
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_pythons() {
        assert_eq!(unescape(r"a\n\d\/\x41\u00e9\101\'").unwrap(), "a\n\\d\\/A\u{e9}A'");
        assert_eq!(unescape(r"\ud83d\ude00").unwrap(), "\u{1f600}");
        assert!(unescape(r"\x4").is_err());
    }

    #[test]
    fn generation_blocks_become_scopes() {
        let out = prepare("{%- generation -%}{{ '{% generation %}' }}{% endgeneration %}").unwrap();
        assert_eq!(out, "{%- with -%}{{ '{% generation %}' }}{% endwith %}");
    }

    #[test]
    fn raw_blocks_and_comments_are_left_alone() {
        for text in ["{% raw %}{{ '\\d' }}{% generation %}{% endraw %}x", "{# '\\d' #}y"] {
            assert_eq!(prepare(text).unwrap(), text);
        }
    }

    #[test]
    fn long_chains_are_refused() {
        assert!(prepare(&format!("{{{{ a{} }}}}", "|b".repeat(9000))).is_err());
        assert!(prepare(&"{% elif a %}".repeat(3000)).is_err());
    }
}
