//! Kernel text: prelude + defines + body, and the hash that identifies it.

use crate::base::{Code, DType, Error, Lang, Result, rng};

use super::{Body, Kernel, Step};

/// Names that OpenCL C gives to the common dialect.
pub const PRELUDE_CL: &str = include_str!("../../kernels/prelude.cl");
/// Names that CUDA C++ gives to the common dialect.
pub const PRELUDE_CU: &str = include_str!("../../kernels/prelude.cu");

/// A complete text for a compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// Its language.
    pub lang: Lang,
    /// The text.
    pub text: String,
    /// The entry point.
    pub entry: String,
}

impl Text {
    /// Identity of the text, language and entry: changes whenever the program would.
    pub fn hash(&self) -> u64 {
        rng::fnv1a64(format!("{:?}\n{}\n{}", self.lang, self.entry, self.text).as_bytes())
    }
}

/// The same with every access to a buffer checked ([`super::debug`]); `None` for texts that cannot be watched.
pub fn assemble_watched(kernel: &Kernel, step: &Step, lang: Lang) -> Result<Option<Text>> {
    let prelude = if lang == Lang::Cuda { PRELUDE_CU } else { PRELUDE_CL };
    let (Body::C(body) | Body::Opencl(body)) = kernel.body else {
        return Ok(None);
    };
    let watched = Step { defines: super::debug::defines(&step.defines), ..step.clone() };
    let text = c_text(prelude, &watched, kernel.expr, &super::debug::body(body)?);
    Ok(Some(Text { lang, text, entry: step.entry.to_string() }))
}

/// The text of one step of a kernel in `lang`.
pub fn assemble(kernel: &Kernel, step: &Step, lang: Lang) -> Result<Text> {
    let text = match (kernel.body, lang) {
        (Body::C(body) | Body::Opencl(body), Lang::OpenclC) => c_text(PRELUDE_CL, step, kernel.expr, body),
        (Body::C(body), Lang::Cuda) => c_text(PRELUDE_CU, step, kernel.expr, body),
        (Body::Cuda(body), Lang::Cuda) => c_text("", step, kernel.expr, body),
        (Body::Wgsl(body), Lang::Wgsl) => wgsl_text(step, kernel.expr, body)?,
        (body, lang) => {
            return Err(Error::new(
                Code::Internal,
                format!("variant {}: {body:?} has no text in {lang:?}", kernel.variant),
            ));
        }
    };
    Ok(Text { lang, text, entry: step.entry.to_string() })
}

fn c_text(prelude: &str, step: &Step, expr: &str, body: &str) -> String {
    let mut out = String::with_capacity(prelude.len() + body.len() + 512);
    out.push_str(prelude);
    for (name, value) in &step.defines {
        out.push_str(&format!("#define {name} {value}\n"));
    }
    if !expr.is_empty() {
        // `x` and `b` are the operands in the op's expression; unary texts pass only the first.
        out.push_str(&format!("#define EXPR(x, b) ({expr})\n"));
    }
    out.push_str(&only_entry(body, step.entry));
    out
}

/// The text with every other entry than `entry` left blank, line by line, so that a compiler's line numbers stay those
/// of the file. A driver makes machine code of every entry that it is given, also of those that nobody launches.
/// An entry begins with a line that starts with `KERNEL` and ends with the next line that starts with `}`.
fn only_entry(body: &str, entry: &str) -> String {
    let mut out = String::with_capacity(body.len());
    let mut dropping = false;
    for line in body.split_inclusive('\n') {
        if let Some(name) = entry_of(line) {
            dropping = name != entry;
        }
        out.push_str(if dropping { "\n" } else { line });
        if line.starts_with('}') {
            dropping = false;
        }
    }
    out
}

/// The entry that begins with this line of a C-dialect text, if one does.
fn entry_of(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("KERNEL_WG(").or_else(|| line.strip_prefix("KERNEL("))?;
    rest.split([',', ')']).next().map(str::trim)
}

fn wgsl_text(step: &Step, expr: &str, body: &str) -> Result<String> {
    let mut out = body.replace("{{EXPR}}", expr);
    for (name, value) in &step.defines {
        out = out.replace(&format!("{{{{{name}}}}}"), value);
    }
    match out.find("{{") {
        None => Ok(out),
        Some(at) => {
            let rest: String = out[at..].chars().take(40).collect();
            Err(Error::new(Code::Internal, format!("entry {}: unfilled substitution at '{rest}'", step.entry)))
        }
    }
}

/// Defines that tell the common C dialect its number types: `T` (storage), `ACC` (arithmetic), `OUT` (storage of the
/// result), and the accessors `LOAD(p, i)` -> ACC, `STORE(p, i, v)` for T and `STORE_OUT(p, i, v)` for OUT.
pub fn c_types(dtype: DType, acc: DType, out: DType) -> Vec<(String, String)> {
    let storage = |d: DType| match d {
        DType::F16 | DType::BF16 => "u16".to_string(),
        other => other.name().to_string(),
    };
    let load = |d: DType| match d {
        DType::F16 => "F16_LOAD(p, i)".to_string(),
        DType::BF16 => "BF16_LOAD(p, i)".to_string(),
        _ => "((ACC)(p)[i])".to_string(),
    };
    let store = |d: DType| match d {
        DType::F16 => "F16_STORE(p, i, v)".to_string(),
        DType::BF16 => "BF16_STORE(p, i, v)".to_string(),
        other => format!("((p)[i] = ({})(v))", other.name()),
    };
    vec![
        ("T".into(), storage(dtype)),
        ("ACC".into(), acc.name().into()),
        ("OUT".into(), storage(out)),
        ("LOAD(p, i)".into(), load(dtype)),
        ("STORE(p, i, v)".into(), store(dtype)),
        ("STORE_OUT(p, i, v)".into(), store(out)),
    ]
}

/// Numbers in a vector of 64 bytes of a dtype's arithmetic.
pub(super) fn vector_lanes(dtype: DType) -> u64 {
    64 / dtype.compute().size()
}

/// Defines that tell a text for processors its vectors of 64 bytes: `VECTOR` of `LANES` numbers of the arithmetic, `PLACES` of
/// as many integers, as comparisons of a `VECTOR` give them, and `NUMBERS`, which are 0, 1, ..; `LOAD_VECTOR(p, i)` and
/// `STORE_VECTOR(p, i, v)` for elements from i on, `STORE_VECTOR_PAST` for whole lines past the caches; `LOAD_PLACES` and
/// `STORE_PLACES` for i32.
pub(super) fn vector_types(dtype: DType) -> Vec<(String, String)> {
    let lanes = vector_lanes(dtype);
    let (vector, places) = match dtype {
        DType::F64 => ("double8", "long8"),
        DType::I32 => ("int16", "int16"),
        _ => ("float16", "int16"),
    };
    // PoCL's vstore is four stores of 16 bytes.
    let anywhere = |vector: &str, v: &str| format!("(*(GLOBAL prelude_{vector} *)&(p)[i] = ({v}))");
    let (load, store) = match dtype {
        DType::F16 => (
            "vload_half16(0, (GLOBAL const half *)&(p)[i])".to_string(),
            "vstore_half16_rte((v), 0, (GLOBAL half *)&(p)[i])".to_string(),
        ),
        DType::BF16 => (
            "as_float16(convert_uint16(vload16(0, &(p)[i])) << 16)".to_string(),
            "vstore16(prelude_bf16_vector(v), 0, &(p)[i])".to_string(),
        ),
        _ => (format!("vload{lanes}(0, &(p)[i])"), anywhere(vector, "v")),
    };
    let (load_places, store_places) = match dtype {
        DType::F64 => ("convert_long8(vload8(0, &(p)[i]))", anywhere("int8", "convert_int8(v)")),
        _ => ("vload16(0, &(p)[i])", anywhere("int16", "v")),
    };
    let past = if dtype.size() < 4 { store.clone() } else { "STORE_PAST((GLOBAL VECTOR *)&(p)[i], (v))".into() };
    let numbers: Vec<String> = (0..lanes).map(|l| l.to_string()).collect();
    let numbers = format!("(({places})({}))", numbers.join(", "));
    [
        ("VECTOR", vector.into()),
        ("LANES", lanes.to_string()),
        ("PLACES", places.into()),
        ("NUMBERS", numbers),
        ("LOAD_VECTOR(p, i)", load),
        ("STORE_VECTOR(p, i, v)", store),
        ("STORE_VECTOR_PAST(p, i, v)", past),
        ("LOAD_PLACES(p, i)", load_places.into()),
        ("STORE_PLACES(p, i, v)", store_places),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Cost;
    use crate::kernel::Needs;

    fn step(defines: Vec<(String, String)>) -> Step {
        Step {
            entry: "f",
            dtype: DType::F32,
            defines,
            group: [1; 3],
            groups: [1; 3],
            args: vec![],
            writes: vec![],
            params: vec![],
            cost: Cost::default(),
        }
    }

    #[test]
    fn a_text_holds_its_own_entry_alone() {
        let body = "/* head */\nFUNCTION u64 f(u64 a) {\n    return a;\n}\n\nKERNEL_WG(one, GROUP, 1, 1)(u64 n) {\n    f(n);\n}\n\
                    /* of two */\nKERNEL(two)\n(u64 n) {\n    f(n);\n}\n";
        let one = only_entry(body, "one");
        assert!(
            one.contains("KERNEL_WG(one") && one.contains("FUNCTION u64 f") && !one.contains("KERNEL(two)"),
            "{one}"
        );
        let two = only_entry(body, "two");
        assert!(two.contains("KERNEL(two)\n(u64 n) {\n    f(n);\n}") && !two.contains("one"), "{two}");
        assert_eq!(two.lines().position(|l| l.starts_with("KERNEL(two)")), Some(9), "lines keep their numbers");
        assert_eq!(one.lines().count(), body.lines().count());
    }

    #[test]
    fn an_unfilled_substitution_is_an_error() {
        let k = Kernel {
            variant: "v",
            body: Body::Wgsl("fn f() { {{EXPR}} {{WG}} }"),
            dtypes: &[],
            dtypes_why: "",
            expr: "x",
            needs: Needs::NONE,
            only_when_named: false,
            plan: |_, _, _| Ok(Default::default()),
        };
        let e = assemble(&k, &step(vec![]), Lang::Wgsl).unwrap_err();
        assert!(e.detail().contains("{{WG}}"), "{e}");
        let t = assemble(&k, &step(vec![("WG".into(), "64".into())]), Lang::Wgsl).unwrap();
        assert_eq!(t.text, "fn f() { x 64 }");
        assert!(assemble(&k, &step(vec![]), Lang::Cuda).is_err());
    }
}
