//! The emptiest kernel.

use crate::base::Result;
use crate::kernel::LAUNCH_TOKEN;

use super::{Call, CpuCtx, NativeArgs};

/// `y[0]` = the launch token. No params; i32.
pub fn launch(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, _: &Call) -> Result<()> {
    args.output::<i32>(0, 1)?[0] = LAUNCH_TOKEN;
    Ok(())
}
