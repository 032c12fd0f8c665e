//! A validator for the part of JSON Schema (draft 2020-12) that `document.schema.json` uses. A keyword that it does not
//! know is an error, never passed over. The crates for this cost 30 to 60 packages; this costs one page.

use serde_json::{Map, Value};

/// Everything that is wrong with `value`, each with its place in the document.
pub(crate) fn validate(schema: &Value, value: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    Check { root: schema, faults: &mut faults }.check(schema, value, "$");
    faults
}

struct Check<'a, 'f> {
    root: &'a Value,
    faults: &'f mut Vec<String>,
}

impl<'a> Check<'a, '_> {
    fn fault(&mut self, at: &str, what: String) {
        self.faults.push(format!("{at}: {what}"));
    }

    /// True if `value` fits `schema`; finds the faults of an alternative without reporting them.
    fn fits(&self, schema: &'a Value, value: &Value, at: &str) -> Result<(), Vec<String>> {
        let mut faults = Vec::new();
        Check { root: self.root, faults: &mut faults }.check(schema, value, at);
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    fn check(&mut self, schema: &'a Value, value: &Value, at: &str) {
        let Some(rules) = schema.as_object() else {
            return self.fault(at, format!("the schema {schema} is not an object"));
        };
        for (keyword, rule) in rules {
            self.keyword(rules, keyword, rule, value, at);
        }
    }

    fn keyword(&mut self, rules: &'a Map<String, Value>, keyword: &str, rule: &'a Value, value: &Value, at: &str) {
        let number = |v: &Value| v.as_f64().unwrap_or(f64::NAN);
        match keyword {
            "$schema" | "$defs" | "title" | "description" | "then" | "else" => {}
            "$ref" => match rule.as_str().and_then(|r| r.strip_prefix('#')).and_then(|p| self.root.pointer(p)) {
                Some(target) => self.check(target, value, at),
                None => self.fault(at, format!("{rule} leads nowhere")),
            },
            "type" => {
                let names: Vec<&str> = match rule {
                    Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
                    one => one.as_str().into_iter().collect(),
                };
                if !names.iter().any(|n| is_type(value, n)) {
                    self.fault(at, format!("{} is not {}", short(value), names.join(" or ")));
                }
            }
            "const" if value != rule => self.fault(at, format!("{} is not {rule}", short(value))),
            "enum" if !rule.as_array().is_some_and(|l| l.contains(value)) => {
                self.fault(at, format!("{} is none of {rule}", short(value)));
            }
            "minimum" if value.is_number() && number(value) < number(rule) => {
                self.fault(at, format!("{value} is less than {rule}"));
            }
            "maximum" if value.is_number() && number(value) > number(rule) => {
                self.fault(at, format!("{value} is more than {rule}"));
            }
            "minLength" => self.length(value.as_str().map(|s| s.chars().count()), rule, usize::ge, at, keyword),
            "minItems" => self.length(value.as_array().map(Vec::len), rule, usize::ge, at, keyword),
            "maxItems" => self.length(value.as_array().map(Vec::len), rule, usize::le, at, keyword),
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    self.check(rule, item, &format!("{at}[{i}]"));
                }
            }
            "required" => {
                for name in rule.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    if value.as_object().is_some_and(|o| !o.contains_key(name)) {
                        self.fault(at, format!("'{name}' is missing"));
                    }
                }
            }
            "properties" => {
                for (name, inner) in rule.as_object().into_iter().flatten() {
                    if let Some(v) = value.get(name) {
                        self.check(inner, v, &format!("{at}.{name}"));
                    }
                }
            }
            "additionalProperties" => {
                let declared = rules.get("properties").and_then(Value::as_object);
                let others = value.as_object().into_iter().flatten();
                for (name, v) in others.filter(|(n, _)| !declared.is_some_and(|d| d.contains_key(*n))) {
                    if rule == &Value::Bool(false) {
                        self.fault(at, format!("'{name}' is not in the schema"));
                    } else {
                        self.check(rule, v, &format!("{at}.{name}"));
                    }
                }
            }
            "allOf" => rule.as_array().into_iter().flatten().for_each(|s| self.check(s, value, at)),
            "anyOf" | "oneOf" => self.alternatives(keyword, rule, value, at),
            "if" => {
                let branch = if self.fits(rule, value, at).is_ok() { "then" } else { "else" };
                if let Some(next) = rules.get(branch) {
                    self.check(next, value, at);
                }
            }
            "const" | "enum" | "minimum" | "maximum" => {}
            other => self.fault(at, format!("the validator does not know the keyword '{other}'")),
        }
    }

    fn length(&mut self, have: Option<usize>, rule: &Value, ok: fn(&usize, &usize) -> bool, at: &str, keyword: &str) {
        let want = rule.as_u64().and_then(|v| usize::try_from(v).ok());
        match (have, want) {
            (Some(h), Some(w)) if !ok(&h, &w) => self.fault(at, format!("length {h}, {keyword} is {w}")),
            (_, None) => self.fault(at, format!("{keyword}: {rule} is no length")),
            _ => {}
        }
    }

    fn alternatives(&mut self, keyword: &str, rule: &'a Value, value: &Value, at: &str) {
        let tries: Vec<_> = rule.as_array().into_iter().flatten().map(|s| self.fits(s, value, at)).collect();
        let fitting = tries.iter().filter(|t| t.is_ok()).count();
        match fitting {
            0 => {
                // The alternative with the fewest faults is the one that was meant.
                let nearest = tries.into_iter().filter_map(Result::err).min_by_key(Vec::len).unwrap_or_default();
                self.fault(at, format!("fits no alternative; the nearest: {}", nearest.join("; ")));
            }
            n if n > 1 && keyword == "oneOf" => self.fault(at, format!("fits {n} alternatives")),
            _ => {}
        }
    }
}

fn is_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 { text } else { text.chars().take(57).chain("...".chars()).collect() }
}
