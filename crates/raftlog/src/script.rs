//! Scripts that decide what a repair keeps: up to three functions in the part of Rhai that such scripts are made of.
//!
//! Numbers of 64 bits and truth values; `fn`, `let`, `if`, `while`, `loop`, `break`, `continue`, `return`, calls of the script's own
//! functions, the operators on numbers and truth values, comments. What is accepted means what it means in Rhai. Strings,
//! arrays, imports and the rest are refused when the script is read, before any file is looked at. The crate `rhai` itself
//! is not linked: `docs/adr/2026-11-23-raft-log-repair.md`.
//!
//! 1. A script never panics and always ends: the depth of what is nested or called, and the steps of a call, are bounded.
//! 2. What does not fit together (a number where a truth value is due, a result that is neither 0, 1 nor 2) is an error.

mod parse;

use std::collections::HashMap;

use orogen_base::{Error, Result};

use crate::repair::{Change, Incoming, Verdict};
use parse::{Binary, Expr, Function, Link, Statement, parse};

/// Steps of one call from outside.
const STEPS_MAX: u64 = 10_000_000;

/// What is computed within each other, over all calls.
const DEPTH_MAX: usize = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Unit,
    Int(i64),
    Bool(bool),
}

/// The functions of a script, read and checked.
#[derive(Debug)]
pub struct RepairScript {
    functions: HashMap<String, Function>,
}

/// How many parameters each function has that is asked.
const FILTERS: [(&str, usize); 3] = [
    ("filter_append", 7),
    ("filter_compact", 6),
    ("filter_clean", 5),
];

impl RepairScript {
    /// Reads a script. Its functions, each of which may be left out, are
    ///
    /// ```text
    /// fn filter_append(id, first, count, rewrite_count, queue, ifirst, ilast) { .. }
    /// fn filter_compact(id, first, count, rewrite_count, queue, compact_to) { .. }
    /// fn filter_clean(id, first, count, rewrite_count, queue) { .. }
    /// ```
    /// and give 0 to apply what comes, 1 to drop it, and 2 to drop the group's entries before it. `queue` is 0 for the append queue
    /// and 1 for the other; numbers beyond the bounds of 64 bits with a sign are negative.
    ///
    /// # Errors
    /// `InvalidArgument` with the line, for what is no such script.
    pub fn compile(text: &str) -> Result<Self> {
        let mut functions = HashMap::new();
        for function in parse(text)? {
            let wanted = FILTERS.iter().find(|(name, _)| *name == function.name);
            if let Some((name, count)) = wanted
                && function.parameters.len() != *count
            {
                return Err(Error::invalid_argument("a function has other parameters")
                    .with("function", name)
                    .with("found", function.parameters.len())
                    .with("expected", count));
            }
            let name = function.name.clone();
            if functions.insert(name.clone(), function).is_some() {
                return Err(
                    Error::invalid_argument("a function is there twice").with("function", name)
                );
            }
        }
        Ok(Self { functions })
    }

    /// What the script says of something that is to be applied.
    ///
    /// # Errors
    /// `InvalidArgument` if it does not end with 0, 1 or 2.
    pub fn decide(&self, incoming: &Incoming) -> Result<Verdict> {
        let int = |n: u64| Value::Int(n as i64);
        let (name, more) = match incoming.change {
            Change::Entries { first, last } => ("filter_append", vec![int(first), int(last)]),
            Change::Compact { index } => ("filter_compact", vec![int(index)]),
            Change::Clean => ("filter_clean", Vec::new()),
        };
        let Some(function) = self.functions.get(name) else {
            return Ok(Verdict::Apply);
        };
        let mut arguments = vec![
            int(incoming.group),
            int(incoming.first),
            int(incoming.count),
            int(incoming.rewrite_count),
            int(incoming.queue as u64),
        ];
        arguments.extend(more);
        let mut machine = Machine {
            script: self,
            steps: STEPS_MAX,
            depth: 0,
        };
        let value = machine
            .call(function, arguments)
            .map_err(|e| e.with("function", name))?;
        match value {
            Value::Int(0) => Ok(Verdict::Apply),
            Value::Int(1) => Ok(Verdict::DropIncoming),
            Value::Int(2) => Ok(Verdict::DropExisting),
            other => Err(Error::invalid_argument("a script must give 0, 1 or 2")
                .with("function", name)
                .with("found", format!("{other:?}"))),
        }
    }
}

/// Where a statement leads.
enum Flow {
    Next(Value),
    Break,
    Continue,
    Return(Value),
}

struct Machine<'s> {
    script: &'s RepairScript,
    steps: u64,
    depth: usize,
}

/// The variables in sight; of one name the last.
type Variables<'s> = Vec<(&'s str, Value)>;

#[cold]
fn mistake(why: &'static str, line: u32) -> Error {
    Error::invalid_argument(why).with("line", line)
}

impl<'s> Machine<'s> {
    fn call(&mut self, function: &'s Function, arguments: Vec<Value>) -> Result<Value> {
        let names = function.parameters.iter().map(String::as_str);
        let mut variables: Variables<'s> = names.zip(arguments).collect();
        match self.block(&function.body, &mut variables)? {
            Flow::Next(value) | Flow::Return(value) => Ok(value),
            Flow::Break | Flow::Continue => Err(mistake("no loop to leave", function.line)),
        }
    }

    fn block(
        &mut self,
        statements: &'s [Statement],
        variables: &mut Variables<'s>,
    ) -> Result<Flow> {
        self.go_deeper()?;
        let before = variables.len();
        let mut last = Flow::Next(Value::Unit);
        for statement in statements {
            last = self.statement(statement, variables)?;
            if !matches!(last, Flow::Next(_)) {
                break;
            }
        }
        variables.truncate(before);
        self.depth -= 1;
        Ok(last)
    }

    fn go_deeper(&mut self) -> Result<()> {
        if self.depth == DEPTH_MAX {
            return Err(Error::invalid_argument("a script computes too deep"));
        }
        // After an error nothing more is computed.
        self.depth += 1;
        Ok(())
    }

    fn step(&mut self, line: u32) -> Result<()> {
        self.steps = self
            .steps
            .checked_sub(1)
            .ok_or_else(|| mistake("a script takes too many steps", line))?;
        Ok(())
    }

    fn statement(
        &mut self,
        statement: &'s Statement,
        variables: &mut Variables<'s>,
    ) -> Result<Flow> {
        match statement {
            Statement::Let { name, value } => {
                let value = self.value(value, variables)?;
                variables.push((name, value));
                Ok(Flow::Next(Value::Unit))
            }
            Statement::Assign { name, value, line } => {
                let value = self.value(value, variables)?;
                let known = variables.iter_mut().rev().find(|(known, _)| known == name);
                let (_, known) = known.ok_or_else(|| mistake("no such variable", *line))?;
                *known = value;
                Ok(Flow::Next(Value::Unit))
            }
            Statement::While {
                condition,
                body,
                line,
            } => loop {
                self.step(*line)?;
                if let Some(condition) = condition
                    && !self.truth(condition, variables, *line)?
                {
                    return Ok(Flow::Next(Value::Unit));
                }
                match self.block(body, variables)? {
                    Flow::Break => return Ok(Flow::Next(Value::Unit)),
                    Flow::Return(value) => return Ok(Flow::Return(value)),
                    Flow::Next(_) | Flow::Continue => {}
                }
            },
            Statement::Break => Ok(Flow::Break),
            Statement::Continue => Ok(Flow::Continue),
            Statement::Return(value) => {
                let value = value.as_ref().map(|value| self.value(value, variables));
                Ok(Flow::Return(value.transpose()?.unwrap_or(Value::Unit)))
            }
            Statement::Value { value, is_last } => {
                let flow = self.flow(value, variables)?;
                Ok(match flow {
                    Flow::Next(_) if !is_last => Flow::Next(Value::Unit),
                    flow => flow,
                })
            }
        }
    }

    fn truth(&mut self, expr: &'s Expr, variables: &mut Variables<'s>, line: u32) -> Result<bool> {
        match self.value(expr, variables)? {
            Value::Bool(truth) => Ok(truth),
            _ => Err(mistake("no truth value", line)),
        }
    }

    /// The value of an expression from which nothing is left.
    fn value(&mut self, expr: &'s Expr, variables: &mut Variables<'s>) -> Result<Value> {
        match self.flow(expr, variables)? {
            Flow::Next(value) => Ok(value),
            _ => Err(Error::invalid_argument(
                "a value is left by break, continue or return",
            )),
        }
    }

    fn flow(&mut self, expr: &'s Expr, variables: &mut Variables<'s>) -> Result<Flow> {
        self.go_deeper()?;
        let flow = self.shallow_flow(expr, variables)?;
        self.depth -= 1;
        Ok(flow)
    }

    fn shallow_flow(&mut self, expr: &'s Expr, variables: &mut Variables<'s>) -> Result<Flow> {
        let value = match expr {
            Expr::Int(n) => Value::Int(*n),
            Expr::Bool(truth) => Value::Bool(*truth),
            Expr::Variable { name, line } => {
                let known = variables.iter().rev().find(|(known, _)| known == name);
                known.ok_or_else(|| mistake("no such variable", *line))?.1
            }
            Expr::Not { value, line } => Value::Bool(!self.truth(value, variables, *line)?),
            Expr::Negative { value, line } => match self.value(value, variables)? {
                Value::Int(n) => {
                    let n = n.checked_neg();
                    Value::Int(n.ok_or_else(|| mistake("number is out of bounds", *line))?)
                }
                _ => return Err(mistake("no number", *line)),
            },
            Expr::Chain { first, rest } => {
                let mut left = self.value(first, variables)?;
                for link in rest {
                    left = self.link(left, link, variables)?;
                }
                left
            }
            Expr::If {
                branches,
                otherwise,
                line,
            } => {
                for (condition, then) in branches {
                    self.step(*line)?;
                    if self.truth(condition, variables, *line)? {
                        return self.block(then, variables);
                    }
                }
                return self.block(otherwise, variables);
            }
            Expr::Block(statements) => return self.block(statements, variables),
            Expr::Call {
                name,
                arguments,
                line,
            } => {
                self.step(*line)?;
                let script = self.script;
                let function = script.functions.get(name);
                let function = function
                    .filter(|function| function.parameters.len() == arguments.len())
                    .ok_or_else(|| mistake("no such function", *line).with("function", name))?;
                let mut values = Vec::with_capacity(arguments.len());
                for argument in arguments {
                    values.push(self.value(argument, variables)?);
                }
                self.call(function, values)?
            }
        };
        Ok(Flow::Next(value))
    }

    /// What an operator makes of the value on its left side.
    fn link(
        &mut self,
        left: Value,
        link: &'s Link,
        variables: &mut Variables<'s>,
    ) -> Result<Value> {
        let line = link.line;
        self.step(line)?;
        let is_enough = match (link.operator, left) {
            (Binary::And, Value::Bool(truth)) => Some(!truth),
            (Binary::Or, Value::Bool(truth)) => Some(truth),
            (Binary::And | Binary::Or, _) => return Err(mistake("no truth value", line)),
            _ => None,
        };
        match is_enough {
            Some(true) => Ok(left),
            Some(false) => Ok(Value::Bool(self.truth(&link.right, variables, line)?)),
            None => {
                let right = self.value(&link.right, variables)?;
                compute(link.operator, left, right).map_err(|why| mistake(why, line))
            }
        }
    }
}

fn compute(operator: Binary, left: Value, right: Value) -> Result<Value, &'static str> {
    const OUT: &str = "number is out of bounds";
    Ok(match (left, right) {
        (Value::Int(a), Value::Int(b)) => match operator {
            Binary::Add => Value::Int(a.checked_add(b).ok_or(OUT)?),
            Binary::Subtract => Value::Int(a.checked_sub(b).ok_or(OUT)?),
            Binary::Multiply => Value::Int(a.checked_mul(b).ok_or(OUT)?),
            Binary::Divide | Binary::Rest if b == 0 => return Err("division by zero"),
            Binary::Divide => Value::Int(a.checked_div(b).ok_or(OUT)?),
            Binary::Rest => Value::Int(a.checked_rem(b).ok_or(OUT)?),
            Binary::BitAnd => Value::Int(a & b),
            Binary::BitOr => Value::Int(a | b),
            Binary::BitXor => Value::Int(a ^ b),
            Binary::Equal => Value::Bool(a == b),
            Binary::Unequal => Value::Bool(a != b),
            Binary::Less => Value::Bool(a < b),
            Binary::LessEqual => Value::Bool(a <= b),
            Binary::Greater => Value::Bool(a > b),
            Binary::GreaterEqual => Value::Bool(a >= b),
            Binary::And | Binary::Or => return Err("no truth value"),
        },
        (Value::Bool(a), Value::Bool(b)) => Value::Bool(match operator {
            Binary::Equal => a == b,
            Binary::Unequal | Binary::BitXor => a != b,
            Binary::BitAnd => a & b,
            Binary::BitOr => a | b,
            _ => return Err("no number"),
        }),
        _ => return Err("two values of different types"),
    })
}

#[cfg(test)]
mod tests;
