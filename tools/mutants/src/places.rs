//! The parts of a source in which mutants can be.

use std::ops::Range;

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

/// A function.
pub struct Function {
    pub name: String,
    pub range: Range<usize>,
    /// Its word `const`.
    pub constant: Option<Range<usize>>,
    pub returns_impl: bool,
}

/// An arm of a `match`.
pub struct Arm {
    pub range: Range<usize>,
    pub pattern: Range<usize>,
    pub guard: Option<Range<usize>>,
}

/// All of them, in bytes.
#[derive(Default)]
pub struct Places {
    pub functions: Vec<Function>,
    pub arms: Vec<Arm>,
    /// Operators, each with its expression.
    operators: Vec<(Range<usize>, Range<usize>)>,
    structs: Vec<Range<usize>>,
}

impl Places {
    /// Returns those of a source.
    pub fn of(source: &str) -> Self {
        let file = syn::parse_file(source).expect("the source is Rust");
        let mut places = Self::default();
        places.visit_file(&file);
        places
    }

    /// Returns the whole expression whose operator or field this is.
    pub fn expression(&self, genre: &str, part: &Range<usize>) -> Option<Range<usize>> {
        match genre {
            "BinaryOperator" | "UnaryOperator" => {
                self.operators.iter().find(|(operator, _)| operator.start == part.start).map(|(_, all)| all.clone())
            }
            "StructField" => {
                let around = self.structs.iter().filter(|all| all.start <= part.start && part.end <= all.end);
                around.min_by_key(|all| all.len()).cloned()
            }
            _ => None,
        }
    }

    fn function(&mut self, signature: &syn::Signature, all: Range<usize>) {
        let returns_impl = match &signature.output {
            syn::ReturnType::Type(_, kind) => has_impl(kind),
            syn::ReturnType::Default => false,
        };
        self.functions.push(Function {
            name: signature.ident.to_string(),
            range: all,
            constant: signature.constness.map(|token| token.span.byte_range()),
            returns_impl,
        });
    }
}

fn has_impl(kind: &syn::Type) -> bool {
    struct Finder(bool);
    impl Visit<'_> for Finder {
        fn visit_type_impl_trait(&mut self, _: &syn::TypeImplTrait) {
            self.0 = true;
        }
    }
    let mut finder = Finder(false);
    finder.visit_type(kind);
    finder.0
}

/// Whether a chain of conditions binds names: it has no brackets.
fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl<'a> Visit<'a> for Places {
    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.function(&item.sig, item.span().byte_range());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.function(&item.sig, item.span().byte_range());
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        self.function(&item.sig, item.span().byte_range());
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        self.arms.push(Arm {
            range: arm.span().byte_range(),
            pattern: arm.pat.span().byte_range(),
            guard: arm.guard.as_ref().map(|(_, guard)| guard.span().byte_range()),
        });
        visit::visit_arm(self, arm);
    }

    fn visit_expr_binary(&mut self, binary: &'a syn::ExprBinary) {
        if !has_let(&binary.left) && !has_let(&binary.right) {
            self.operators.push((binary.op.span().byte_range(), binary.span().byte_range()));
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'a syn::ExprUnary) {
        self.operators.push((unary.op.span().byte_range(), unary.span().byte_range()));
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_struct(&mut self, literal: &'a syn::ExprStruct) {
        self.structs.push(literal.span().byte_range());
        visit::visit_expr_struct(self, literal);
    }
}
