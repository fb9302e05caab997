// The text form of schedules.
#include "base/text.h"
#include "intarsia/attention.h"
#include "intarsia/error.h"

namespace intarsia {

std::string AttentionSchedule::to_string() const {
  const std::string_view keys_text = keys == Keys::gather ? "gather"
                                     : keys == Keys::ring ? "ring"
                                                          : "auto";
  if (all_heads) return "heads";
  return head_axes.empty() ? std::string(keys_text)
                           : concat(keys_text, "+heads(", join(head_axes), ")");
}

AttentionSchedule AttentionSchedule::parse(std::string_view text) {
  Cursor cursor("AttentionSchedule", text);
  AttentionSchedule out;
  if (cursor.accept("heads")) {
    out.all_heads = true;
    cursor.end();
    return out;
  }
  if (cursor.accept("gather")) {
    out.keys = Keys::gather;
  } else if (cursor.accept("ring")) {
    out.keys = Keys::ring;
  } else if (!cursor.accept("auto")) {
    cursor.fail_here("auto, gather, ring or heads");
  }
  if (cursor.accept("+")) {
    cursor.expect("heads");
    cursor.expect("(");
    do out.head_axes.push_back(cursor.name());
    while (cursor.accept(","));
    cursor.expect(")");
  }
  cursor.end();
  return out;
}

}  // namespace intarsia
