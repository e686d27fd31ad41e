//! A quick look at a rule before Cedar's thorough one, which spares that one where the answer is certain.
//!
//! Of 200 rules, a request usually concerns a handful, and Cedar takes a good part of a microsecond to find that out for
//! each of the others; where it is asked once in a while, most of its code and data have to be fetched from memory anew,
//! which takes far longer. A sieve knows the rule's scope and the parts of its conditions that are plain comparisons. It
//! answers only when it is certain: whatever it does not understand, or what could fail in Cedar, is "cannot tell", and
//! whatever comes after that is not looked at either, because Cedar reads conditions from left to right and a failure there
//! counts. So a rule that is left out would have been false without a failure, and one that is said to apply would have been
//! true without one: asking Cedar about either would change no answer.

use cedar_policy::{ActionConstraint, EntityUid, Policy, PrincipalConstraint, ResourceConstraint};
use effectd_contracts::RiskLevel;
use serde_json::Value as Json;

use super::circumstances::{EFFECTS_PLACE, Field, Seen, Value};
use crate::glob::Glob;

/// Whether a rule applies to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Applies {
    /// Certainly not.
    No,
    /// Certainly.
    Yes,
    /// Cedar has to be asked.
    CannotTell,
}

/// What is known of one rule.
#[derive(Debug)]
pub(crate) struct Sieve {
    scope: Scope,
    conditions: Expr,
}

/// What a rule's head asks for, as far as it is understood; heads do not fail.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    pub(crate) subject: Option<String>,
    pub(crate) role: Option<String>,
    pub(crate) space: Option<String>,
    space_class: Option<String>,
    levels: Option<Vec<RiskLevel>>,
    /// Some of the head is not understood: more may be asked for than stands here.
    open: bool,
}

/// An expression of a condition.
#[derive(Debug, Clone, PartialEq)]
enum Expr {
    /// Not understood; also stands for everything behind it.
    Unknown,
    Text(String),
    Truth(bool),
    Number(i64),
    Field(Field),
    Not(Box<Expr>),
    And(Box<[Expr; 2]>),
    Or(Box<[Expr; 2]>),
    If(Box<[Expr; 3]>),
    Compare(Comparison, Box<[Expr; 2]>),
    Sum(Sum, Box<[Expr; 2]>),
    Like(Glob, Box<Expr>),
    /// One of these.
    Among(Vec<Expr>, Box<Expr>),
    /// The tool declares this effect.
    Effect(Box<Expr>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Sum {
    Add,
    Subtract,
    Multiply,
}

impl Sieve {
    /// From the rule, and the same rule as JSON.
    pub(crate) fn of(rule: &Policy, json: &Json) -> Self {
        let conditions = json.get("conditions").and_then(Json::as_array);
        let conditions = conditions.map_or(Expr::Unknown, |conditions| {
            conditions.iter().map(condition).fold(Expr::Truth(true), both)
        });
        Self {
            scope: Scope::of(rule),
            conditions,
        }
    }

    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The comparison with a text that the conditions begin with, if they do.
    pub(crate) fn first_text(&self) -> Option<(Field, &str)> {
        let mut first = &self.conditions;
        while let Expr::And(sides) = first {
            // The empty conjunction that conditions are joined onto is no beginning.
            first = if sides[0] == Expr::Truth(true) {
                &sides[1]
            } else {
                &sides[0]
            };
        }
        let Expr::Compare(Comparison::Equal, sides) = first else {
            return None;
        };
        let [left, right] = &**sides;
        if let (Expr::Field(field), Expr::Text(text)) | (Expr::Text(text), Expr::Field(field)) = (left, right)
        {
            return Some((*field, text));
        }
        None
    }

    /// Whether there are requests for which it is certain, beside those that the scope's subject, role or space leaves out
    /// already.
    pub(crate) fn is_useful(&self) -> bool {
        let scope = &self.scope;
        let told = scope.levels.is_some() || scope.space_class.is_some() || scope.space.is_some();
        told || self.conditions != Expr::Unknown
    }

    /// Whether the rule applies.
    pub(crate) fn look(&self, seen: &Seen<'_>) -> Applies {
        if !self.scope.allows(seen) {
            return Applies::No;
        }
        match self.conditions.evaluate(seen) {
            Some(Value::Truth(false)) => Applies::No,
            Some(Value::Truth(true)) if !self.scope.open => Applies::Yes,
            Some(Value::Truth(true) | Value::Text(_) | Value::Number(_)) | None => Applies::CannotTell,
        }
    }
}

impl Scope {
    fn of(rule: &Policy) -> Self {
        let named = |uid: &EntityUid, kind: &str| {
            (uid.type_name().to_string() == kind).then(|| uid.id().unescaped().to_owned())
        };
        let mut scope = Self::default();
        match rule.principal_constraint() {
            PrincipalConstraint::Eq(uid) => {
                scope.subject = named(&uid, "Subject");
                scope.open |= scope.subject.is_none();
            }
            PrincipalConstraint::In(uid) => {
                scope.role = named(&uid, "Role");
                scope.open |= scope.role.is_none();
            }
            PrincipalConstraint::IsIn(_, uid) => {
                scope.role = named(&uid, "Role");
                scope.open = true;
            }
            PrincipalConstraint::Is(_) => scope.open = true,
            PrincipalConstraint::Any => {}
        }
        match rule.resource_constraint() {
            ResourceConstraint::Eq(uid) => {
                scope.space = named(&uid, "Space");
                scope.open |= scope.space.is_none();
            }
            ResourceConstraint::In(uid) => {
                scope.space_class = named(&uid, "SpaceClass");
                scope.open |= scope.space_class.is_none();
            }
            ResourceConstraint::IsIn(_, uid) => {
                scope.space_class = named(&uid, "SpaceClass");
                scope.open = true;
            }
            ResourceConstraint::Is(_) => scope.open = true,
            ResourceConstraint::Any => {}
        }
        scope.levels = match rule.action_constraint() {
            ActionConstraint::Any => return scope,
            ActionConstraint::Eq(uid) => level(&uid).map(|level| vec![level]),
            ActionConstraint::In(uids) => uids.iter().map(level).collect(),
        };
        scope.open |= scope.levels.is_none();
        scope
    }

    fn allows(&self, seen: &Seen<'_>) -> bool {
        let is = |wanted: &Option<String>, have: &str| wanted.as_ref().is_none_or(|wanted| wanted == have);
        self.levels
            .as_ref()
            .is_none_or(|levels| levels.contains(&seen.level()))
            && is(&self.subject, seen.subject())
            && is(&self.space, seen.space().as_str())
            && is(&self.space_class, seen.space().class())
            && self.role.as_ref().is_none_or(|role| seen.has_role(role))
    }
}

/// The level of an action; `None` if it is none of ours.
fn level(action: &EntityUid) -> Option<RiskLevel> {
    match action.id().unescaped() {
        "read" => Some(RiskLevel::Read),
        "write" => Some(RiskLevel::Write),
        "danger" => Some(RiskLevel::Danger),
        _ => None,
    }
}

fn condition(condition: &Json) -> Expr {
    let body = condition.get("body").map_or(Expr::Unknown, read);
    match condition.get("kind").and_then(Json::as_str) {
        Some("when") => body,
        Some("unless") => not(body),
        Some(_) | None => Expr::Unknown,
    }
}

fn not(expr: Expr) -> Expr {
    if expr == Expr::Unknown {
        return expr;
    }
    Expr::Not(Box::new(expr))
}

fn both(left: Expr, right: Expr) -> Expr {
    match (left, right) {
        (Expr::Unknown, _) => Expr::Unknown,
        (Expr::Truth(true), right) => right,
        (left, right) => Expr::And(Box::new([left, right])),
    }
}

fn read(json: &Json) -> Expr {
    read_known(json).unwrap_or(Expr::Unknown)
}

/// Reads one expression of the rule's JSON, an object with one member that names it.
fn read_known(json: &Json) -> Option<Expr> {
    let (name, body) = json
        .as_object()
        .filter(|object| object.len() == 1)?
        .iter()
        .next()?;
    let side = |name: &str| body.get(name).map(read).filter(|expr| *expr != Expr::Unknown);
    let sides = || Some(Box::new([side("left")?, side("right")?]));
    // The right side of these may be beyond us: often the left one is enough.
    let lenient = || Some(Box::new([side("left")?, body.get("right").map(read)?]));
    let compare = |how| Some(Expr::Compare(how, sides()?));
    let sum = |how| Some(Expr::Sum(how, sides()?));
    match name.as_str() {
        "Value" => literal(body),
        "." => Field::at(&place(json)?).map(Expr::Field),
        "!" => Some(Expr::Not(Box::new(side("arg")?))),
        "&&" => lenient().map(Expr::And),
        "||" => lenient().map(Expr::Or),
        "if-then-else" => {
            let branch = |name: &str| body.get(name).map(read);
            Some(Expr::If(Box::new([
                side("if")?,
                branch("then")?,
                branch("else")?,
            ])))
        }
        "==" => compare(Comparison::Equal),
        "!=" => compare(Comparison::Unequal),
        "<" => compare(Comparison::Less),
        "<=" => compare(Comparison::LessOrEqual),
        ">" => compare(Comparison::Greater),
        ">=" => compare(Comparison::GreaterOrEqual),
        "+" => sum(Sum::Add),
        "-" => sum(Sum::Subtract),
        "*" => sum(Sum::Multiply),
        "like" => Some(Expr::Like(
            pattern(body.get("pattern")?)?,
            Box::new(side("left")?),
        )),
        "contains" => contains(body.get("left")?, side("right")?),
        _ => None,
    }
}

fn literal(json: &Json) -> Option<Expr> {
    match json {
        Json::String(text) => Some(Expr::Text(text.clone())),
        Json::Bool(truth) => Some(Expr::Truth(*truth)),
        Json::Number(number) => number.as_i64().map(Expr::Number),
        Json::Null | Json::Array(_) | Json::Object(_) => None,
    }
}

/// `context.tool.id`, from nested accesses.
fn place(expression: &Json) -> Option<String> {
    if let Some(name) = expression.get("Var") {
        return name.as_str().map(str::to_owned);
    }
    let access = expression.get(".")?;
    let of = place(access.get("left")?)?;
    Some(format!("{of}.{}", access.get("attr")?.as_str()?))
}

/// A pattern whose own text holds no star; ours cannot say "a real star".
fn pattern(json: &Json) -> Option<Glob> {
    let mut text = String::new();
    for piece in json.as_array()? {
        match piece.get("Literal").and_then(Json::as_str) {
            Some(literal) if !literal.contains('*') => text.push_str(literal),
            Some(_) => return None,
            None if piece == "Wildcard" => text.push('*'),
            None => return None,
        }
    }
    Some(Glob::new(text))
}

/// `["a", "b"].contains(…)`, or the same about the effects of the tool.
fn contains(set: &Json, member: Expr) -> Option<Expr> {
    if place(set).is_some_and(|place| place == EFFECTS_PLACE) {
        return Some(Expr::Effect(Box::new(member)));
    }
    let items = set.get("Set")?.as_array()?;
    let items: Option<Vec<Expr>> = items.iter().map(|item| literal(item.get("Value")?)).collect();
    Some(Expr::Among(items?, Box::new(member)))
}

impl Expr {
    /// Its value, if that is certain and cannot fail.
    fn evaluate<'a>(&'a self, seen: &Seen<'a>) -> Option<Value<'a>> {
        match self {
            Expr::Unknown => None,
            Expr::Text(text) => Some(Value::Text(text)),
            Expr::Truth(truth) => Some(Value::Truth(*truth)),
            Expr::Number(number) => Some(Value::Number(*number)),
            Expr::Field(field) => Some(seen.get(*field)),
            Expr::Not(inner) => Some(Value::Truth(!inner.truth(seen)?)),
            Expr::And(sides) => Some(Value::Truth(sides[0].truth(seen)? && sides[1].truth(seen)?)),
            Expr::Or(sides) => Some(Value::Truth(sides[0].truth(seen)? || sides[1].truth(seen)?)),
            Expr::If(parts) => {
                let [test, then, otherwise] = &**parts;
                let branch = if test.truth(seen)? { then } else { otherwise };
                branch.evaluate(seen)
            }
            Expr::Compare(how, sides) => how
                .holds(sides[0].evaluate(seen)?, sides[1].evaluate(seen)?)
                .map(Value::Truth),
            Expr::Sum(how, sides) => match (sides[0].evaluate(seen)?, sides[1].evaluate(seen)?) {
                (Value::Number(left), Value::Number(right)) => how.of(left, right).map(Value::Number),
                _ => None,
            },
            Expr::Like(pattern, text) => match text.evaluate(seen)? {
                Value::Text(text) => Some(Value::Truth(pattern.matches(text))),
                Value::Truth(_) | Value::Number(_) => None,
            },
            Expr::Among(items, member) => {
                let member = member.evaluate(seen)?;
                let among = items.iter().any(|item| item.evaluate(seen) == Some(member));
                Some(Value::Truth(among))
            }
            Expr::Effect(member) => match member.evaluate(seen)? {
                Value::Text(word) => Some(Value::Truth(seen.has_effect(word))),
                Value::Truth(_) | Value::Number(_) => None,
            },
        }
    }

    fn truth(&self, seen: &Seen<'_>) -> Option<bool> {
        match self.evaluate(seen)? {
            Value::Truth(truth) => Some(truth),
            Value::Text(_) | Value::Number(_) => None,
        }
    }
}

impl Comparison {
    fn holds(self, left: Value<'_>, right: Value<'_>) -> Option<bool> {
        let order = match (left, right) {
            (Value::Number(left), Value::Number(right)) => left.cmp(&right),
            (Value::Text(left), Value::Text(right)) if self.is_equality() => left.cmp(right),
            (Value::Truth(left), Value::Truth(right)) if self.is_equality() => left.cmp(&right),
            _ => return None,
        };
        Some(match self {
            Comparison::Equal => order.is_eq(),
            Comparison::Unequal => order.is_ne(),
            Comparison::Less => order.is_lt(),
            Comparison::LessOrEqual => order.is_le(),
            Comparison::Greater => order.is_gt(),
            Comparison::GreaterOrEqual => order.is_ge(),
        })
    }

    const fn is_equality(self) -> bool {
        match self {
            Comparison::Equal | Comparison::Unequal => true,
            Comparison::Less | Comparison::LessOrEqual | Comparison::Greater | Comparison::GreaterOrEqual => {
                false
            }
        }
    }
}

impl Sum {
    /// `None` where Cedar would fail.
    const fn of(self, left: i64, right: i64) -> Option<i64> {
        match self {
            Sum::Add => left.checked_add(right),
            Sum::Subtract => left.checked_sub(right),
            Sum::Multiply => left.checked_mul(right),
        }
    }
}
