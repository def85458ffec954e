//! A script as text, and as a tree.

use std::iter::Peekable;
use std::str::Chars;

use orogen_base::{Error, Result};

/// What is nested in each other: more would be a danger for the stack.
const NESTED_MAX: usize = 50;

/// A function.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) parameters: Vec<String>,
    pub(super) body: Vec<Statement>,
    pub(super) line: u32,
}

#[derive(Debug)]
pub(super) enum Statement {
    Let {
        name: String,
        value: Expr,
    },
    Assign {
        name: String,
        value: Expr,
        line: u32,
    },
    /// Without a condition it ends by `break` only.
    While {
        condition: Option<Expr>,
        body: Vec<Statement>,
        line: u32,
    },
    Break,
    Continue,
    Return(Option<Expr>),
    /// `is_last` if its value is that of the block.
    Value {
        value: Expr,
        is_last: bool,
    },
}

#[derive(Debug)]
pub(super) enum Expr {
    Int(i64),
    Bool(bool),
    Variable {
        name: String,
        line: u32,
    },
    Not {
        value: Box<Expr>,
        line: u32,
    },
    Negative {
        value: Box<Expr>,
        line: u32,
    },
    /// Operators from left to right, none tighter than the one before it: `a || b || c` may be long, and is not deep.
    Chain {
        first: Box<Expr>,
        rest: Vec<Link>,
    },
    If {
        /// With their conditions.
        branches: Vec<(Expr, Vec<Statement>)>,
        otherwise: Vec<Statement>,
        line: u32,
    },
    Block(Vec<Statement>),
    Call {
        name: String,
        arguments: Vec<Expr>,
        line: u32,
    },
}

/// An operator and what is on its right side.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) operator: Binary,
    pub(super) right: Expr,
    pub(super) line: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Or,
    And,
    BitOr,
    BitXor,
    BitAnd,
    Equal,
    Unequal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
    Rest,
}

/// Operators and how tight they bind, as in Rhai.
const BINARY: [(&str, Binary, u32); 16] = [
    ("||", Binary::Or, 30),
    ("|", Binary::BitOr, 30),
    ("^", Binary::BitXor, 30),
    ("&&", Binary::And, 60),
    ("&", Binary::BitAnd, 60),
    ("==", Binary::Equal, 90),
    ("!=", Binary::Unequal, 90),
    ("<", Binary::Less, 130),
    ("<=", Binary::LessEqual, 130),
    (">", Binary::Greater, 130),
    (">=", Binary::GreaterEqual, 130),
    ("+", Binary::Add, 150),
    ("-", Binary::Subtract, 150),
    ("*", Binary::Multiply, 180),
    ("/", Binary::Divide, 180),
    ("%", Binary::Rest, 180),
];

const KEYWORDS: [&str; 11] = [
    "fn", "let", "if", "else", "while", "loop", "break", "continue", "return", "true", "false",
];

/// Symbols, the longer before those that they begin with.
const SYMBOLS: [&str; 29] = [
    "&&", "||", "==", "!=", "<=", ">=", "+=", "-=", "*=", "/=", "%=", "(", ")", "{", "}", ",", ";",
    "=", "<", ">", "+", "-", "*", "/", "%", "!", "&", "|", "^",
];

/// Operators of Rhai that are none here, and would pass for two of those that are.
const REFUSED: [&str; 8] = ["**", "<<", ">>", "|=", "&=", "^=", "=>", "?"];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Int(i64),
    Word(String),
    Symbol(&'static str),
    End,
}

#[cold]
fn refused(why: &'static str, line: u32) -> Error {
    Error::invalid_argument(why).with("line", line)
}

/// The functions of a script.
pub(super) fn parse(text: &str) -> Result<Vec<Function>> {
    let tokens = tokens(text)?;
    let mut parser = Parser {
        tokens,
        at: 0,
        nested: 0,
    };
    let mut functions = Vec::new();
    while *parser.peek() != Token::End {
        functions.push(parser.function()?);
    }
    Ok(functions)
}

/// Skips white space and comments; the text that is left.
fn skip<'t>(mut text: &'t str, line: &mut u32) -> Result<&'t str> {
    loop {
        let rest = text.trim_start();
        *line += lines(&text[..text.len() - rest.len()]);
        text = rest;
        if let Some(comment) = text.strip_prefix("//") {
            text = comment.find('\n').map_or("", |end| &comment[end..]);
        } else if text.starts_with("/*") {
            let len = comment_len(text).ok_or_else(|| refused("a comment has no end", *line))?;
            *line += lines(&text[..len]);
            text = &text[len..];
        } else {
            return Ok(text);
        }
    }
}

fn lines(text: &str) -> u32 {
    text.bytes().filter(|b| *b == b'\n').count() as u32
}

/// Bytes of a comment, which may have others in it.
fn comment_len(text: &str) -> Option<usize> {
    let (mut depth, mut at) = (0usize, 0);
    loop {
        let rest = text.get(at..)?;
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += rest.chars().next()?.len_utf8();
        }
    }
}

fn take_while(chars: &mut Peekable<Chars<'_>>, belongs: impl Fn(char) -> bool) -> String {
    let mut taken = String::new();
    while let Some(c) = chars.next_if(|c| belongs(*c)) {
        taken.push(c);
    }
    taken
}

fn number(word: &str, line: u32) -> Result<i64> {
    let digits = word.replace('_', "");
    let radix = |prefix: &str| digits.strip_prefix(prefix);
    let parsed = if let Some(hex) = radix("0x").or_else(|| radix("0X")) {
        i64::from_str_radix(hex, 16)
    } else if let Some(octal) = radix("0o") {
        i64::from_str_radix(octal, 8)
    } else if let Some(binary) = radix("0b") {
        i64::from_str_radix(binary, 2)
    } else {
        digits.parse()
    };
    parsed.map_err(|_| refused("not a number of 64 bits", line).with("found", word))
}

fn tokens(mut text: &str) -> Result<Vec<(Token, u32)>> {
    let mut tokens = Vec::new();
    let mut line = 1;
    loop {
        text = skip(text, &mut line)?;
        let Some(first) = text.chars().next() else {
            tokens.push((Token::End, line));
            return Ok(tokens);
        };
        let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (token, len) = if is_of_word(first) {
            let word = take_while(&mut text.chars().peekable(), is_of_word);
            let len = word.len();
            match first.is_ascii_digit() {
                true => (Token::Int(number(&word, line)?), len),
                false => (Token::Word(word), len),
            }
        } else {
            let unknown = || refused("not of a script", line).with("found", first);
            if REFUSED.iter().any(|operator| text.starts_with(operator)) {
                return Err(unknown());
            }
            let symbol = SYMBOLS.iter().find(|symbol| text.starts_with(**symbol));
            let symbol = symbol.ok_or_else(unknown)?;
            (Token::Symbol(symbol), symbol.len())
        };
        tokens.push((token, line));
        text = &text[len..];
    }
}

struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
    nested: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).map_or(&Token::End, |(t, _)| t)
    }

    fn line(&self) -> u32 {
        let last = self.tokens.last();
        self.tokens
            .get(self.at)
            .or(last)
            .map_or(1, |(_, line)| *line)
    }

    fn is_next(&mut self, symbol: &str) -> bool {
        let is = matches!(self.peek(), Token::Symbol(s) if *s == symbol);
        self.at += usize::from(is);
        is
    }

    fn is_word(&mut self, word: &str) -> bool {
        let is = matches!(self.peek(), Token::Word(w) if w == word);
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, symbol: &'static str) -> Result<()> {
        match self.is_next(symbol) {
            true => Ok(()),
            false => Err(self.unexpected().with("expected", symbol)),
        }
    }

    #[cold]
    fn unexpected(&self) -> Error {
        let found = match self.peek() {
            Token::Int(n) => n.to_string(),
            Token::Word(word) => word.clone(),
            Token::Symbol(symbol) => (*symbol).to_owned(),
            Token::End => "the end".to_owned(),
        };
        refused("a script cannot be read", self.line()).with("found", found)
    }

    fn name(&mut self) -> Result<String> {
        match self.peek() {
            Token::Word(word) if !KEYWORDS.contains(&word.as_str()) => {
                let word = word.clone();
                self.at += 1;
                Ok(word)
            }
            _ => Err(self.unexpected().with("expected", "a name")),
        }
    }

    /// Reads what is nested, as long as that is not too deep.
    fn nest<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.nested == NESTED_MAX {
            return Err(refused("a script is nested too deep", self.line()));
        }
        self.nested += 1;
        let read = read(self);
        self.nested -= 1;
        read
    }

    fn function(&mut self) -> Result<Function> {
        let line = self.line();
        if !self.is_word("fn") {
            return Err(self.unexpected().with("expected", "fn"));
        }
        let name = self.name()?;
        let mut parameters = Vec::new();
        self.expect("(")?;
        while !self.is_next(")") {
            parameters.push(self.name()?);
            if !self.is_next(",") {
                self.expect(")")?;
                break;
            }
        }
        let body = self.block()?;
        Ok(Function {
            name,
            parameters,
            body,
            line,
        })
    }

    fn block(&mut self) -> Result<Vec<Statement>> {
        self.expect("{")?;
        let mut statements = Vec::new();
        while !self.is_next("}") {
            if self.is_next(";") {
                continue;
            }
            statements.push(self.nest(Self::statement)?);
        }
        Ok(statements)
    }

    /// The end of a statement.
    fn ends(&mut self) -> Result<()> {
        match self.peek() {
            Token::Symbol("}") => Ok(()),
            _ => self.expect(";"),
        }
    }

    fn statement(&mut self) -> Result<Statement> {
        let line = self.line();
        if self.is_word("let") {
            let name = self.name()?;
            self.expect("=")?;
            let value = self.expr(0)?;
            self.ends()?;
            return Ok(Statement::Let { name, value });
        }
        if self.is_word("while") {
            let condition = Some(self.expr(0)?);
            let body = self.block()?;
            return Ok(Statement::While {
                condition,
                body,
                line,
            });
        }
        if self.is_word("loop") {
            let (condition, body) = (None, self.block()?);
            return Ok(Statement::While {
                condition,
                body,
                line,
            });
        }
        if self.is_word("break") {
            self.ends()?;
            return Ok(Statement::Break);
        }
        if self.is_word("continue") {
            self.ends()?;
            return Ok(Statement::Continue);
        }
        if self.is_word("return") {
            let is_alone = matches!(self.peek(), Token::Symbol(";" | "}"));
            let value = (!is_alone).then(|| self.expr(0)).transpose()?;
            self.ends()?;
            return Ok(Statement::Return(value));
        }
        if let Some(assigned) = self.assignment()? {
            self.ends()?;
            return Ok(assigned);
        }
        // Behind a block no operator goes on, and no semicolon is due.
        let is_block = matches!(self.peek(), Token::Symbol("{"))
            || matches!(self.peek(), Token::Word(word) if word == "if");
        let value = match is_block {
            true => self.operand()?,
            false => self.expr(0)?,
        };
        if !is_block {
            self.ends()?;
        }
        // The last one is the block's value, whether a semicolon stands behind it or not.
        while matches!(self.peek(), Token::Symbol(";")) {
            self.at += 1;
        }
        let is_last = matches!(self.peek(), Token::Symbol("}"));
        Ok(Statement::Value { value, is_last })
    }

    fn assignment(&mut self) -> Result<Option<Statement>> {
        const WITH: [(&str, Option<Binary>); 6] = [
            ("=", None),
            ("+=", Some(Binary::Add)),
            ("-=", Some(Binary::Subtract)),
            ("*=", Some(Binary::Multiply)),
            ("/=", Some(Binary::Divide)),
            ("%=", Some(Binary::Rest)),
        ];
        let next = self.tokens.get(self.at + 1).map(|(token, _)| token);
        let Some(Token::Symbol(symbol)) = next else {
            return Ok(None);
        };
        let Some((_, operator)) = WITH.iter().find(|(with, _)| with == symbol) else {
            return Ok(None);
        };
        let line = self.line();
        let name = self.name()?;
        self.at += 1;
        let mut value = self.expr(0)?;
        if let Some(operator) = *operator {
            let old = Expr::Variable {
                name: name.clone(),
                line,
            };
            let right = value;
            value = Expr::Chain {
                first: Box::new(old),
                rest: vec![Link {
                    operator,
                    right,
                    line,
                }],
            };
        }
        Ok(Some(Statement::Assign { name, value, line }))
    }

    /// An expression of operators that bind tighter than `floor`.
    fn expr(&mut self, floor: u32) -> Result<Expr> {
        let first = self.nest(Self::operand)?;
        let mut rest = Vec::new();
        while let Token::Symbol(symbol) = *self.peek() {
            let found = BINARY.iter().find(|(text, _, _)| *text == symbol);
            let Some((_, operator, tightness)) = found.filter(|(_, _, t)| *t > floor) else {
                break;
            };
            let line = self.line();
            self.at += 1;
            rest.push(Link {
                operator: *operator,
                right: self.nest(|parser| parser.expr(*tightness))?,
                line,
            });
        }
        Ok(match rest.is_empty() {
            true => first,
            false => Expr::Chain {
                first: Box::new(first),
                rest,
            },
        })
    }

    fn operand(&mut self) -> Result<Expr> {
        let line = self.line();
        if self.is_next("!") {
            let value = Box::new(self.nest(Self::operand)?);
            return Ok(Expr::Not { value, line });
        }
        if self.is_next("-") {
            let value = Box::new(self.nest(Self::operand)?);
            return Ok(Expr::Negative { value, line });
        }
        if self.is_next("(") {
            let inner = self.nest(|parser| parser.expr(0))?;
            self.expect(")")?;
            return Ok(inner);
        }
        if matches!(self.peek(), Token::Symbol("{")) {
            return Ok(Expr::Block(self.nest(Self::block)?));
        }
        if self.is_word("if") {
            return self.nest(|parser| parser.branches(line));
        }
        if self.is_word("true") {
            return Ok(Expr::Bool(true));
        }
        if self.is_word("false") {
            return Ok(Expr::Bool(false));
        }
        if let Token::Int(n) = *self.peek() {
            self.at += 1;
            return Ok(Expr::Int(n));
        }
        let name = self.name()?;
        if !self.is_next("(") {
            return Ok(Expr::Variable { name, line });
        }
        let mut arguments = Vec::new();
        while !self.is_next(")") {
            arguments.push(self.nest(|parser| parser.expr(0))?);
            if !self.is_next(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(Expr::Call {
            name,
            arguments,
            line,
        })
    }

    /// What is behind `if`.
    fn branches(&mut self, line: u32) -> Result<Expr> {
        let mut branches = Vec::new();
        let otherwise = loop {
            branches.push((self.expr(0)?, self.block()?));
            if !self.is_word("else") {
                break Vec::new();
            }
            if !self.is_word("if") {
                break self.block()?;
            }
        };
        Ok(Expr::If {
            branches,
            otherwise,
            line,
        })
    }
}
