//! Why a plan is refused.

use ccplane_files::document::DocumentError;

/// Why a plan is refused. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// There is neither such a file nor such a shipped plan.
    #[error("no file `{name}`, and no plan of that name comes with ccplane; there are: {}", known.join(", "))]
    NoSuchPlan {
        name: String,
        /// The plans that are shipped.
        known: Vec<&'static str>,
    },
    /// The file cannot be read, or a field is wrong.
    #[error(transparent)]
    Refused(#[from] DocumentError),
}
