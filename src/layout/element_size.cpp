#include "layout/element_size.h"

namespace intarsia {

std::int64_t element_size(DType dtype) {
  switch (dtype) {
    case DType::b1:
    case DType::u8:
    case DType::i8:
    case DType::f8e4m3:
    case DType::f8e5m2:
      return 1;
    case DType::u16:
    case DType::i16:
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::u32:
    case DType::i32:
    case DType::f32:
    case DType::c32:
      return 4;
    case DType::u64:
    case DType::i64:
    case DType::f64:
    case DType::c64:
      return 8;
    case DType::c128:
      return 16;
  }
  return 0;
}

}  // namespace intarsia
