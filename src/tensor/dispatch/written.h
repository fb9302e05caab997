// What follows from a call for the tensors that it wrote, and for the views that it made.
#pragma once

#include "tensor/call/frame.h"

namespace intarsia {

/// What a view has from its base: the count of writes, where its elements come from, and whether
/// plain tensors share its memory. `moved`: the copy that it is a view of, if not of the base.
void share_extra(const Frame& frame, const at::Tensor& view, const at::Tensor* moved, bool in_list);

/// After a call: what it wrote is no longer what was remembered.
void note_writes(const Frame& frame);

/// The result of an op into a plain tensor; out= takes its sizes, with torch's warning.
void write_plain(const Frame::Tensor& plain, const at::Tensor& result);

}  // namespace intarsia
