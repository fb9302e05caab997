#include "checkpoint/format/hashes.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/text.h"
#include "checkpoint/format/json.h"

namespace intarsia::checkpoint {

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t hash_of(std::string_view text) { return hash_of(std::as_bytes(std::span(text))); }

std::uint64_t hash_of(std::span<const std::span<const std::byte>> parts) {
  if (parts.size() == 1) return hash_of(parts[0]);
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const auto& part : parts) XXH3_64bits_update(&state, part.data(), part.size());
  return XXH3_64bits_digest(&state);
}

std::string FileHashes::to_text() const {
  Json::array_t hashes;
  for (const std::uint64_t chunk : chunks) hashes.emplace_back(hash_to_text(chunk));
  return Json{{"file_bytes", file_bytes}, {"chunk_bytes", kChunkBytes}, {"xxh3", hashes}}.dump() +
         '\n';
}

FileHashes FileHashes::parse(std::string_view file, std::string_view text) {
  const Json json = parse_json(file, text);
  const Field fields{json, file, {}};
  fields.only({"file_bytes", "chunk_bytes", "xxh3"});
  FileHashes out;
  out.file_bytes = static_cast<std::uint64_t>(fields.at("file_bytes").integer());
  const Field chunk = fields.at("chunk_bytes");
  if (chunk.integer() != std::int64_t{kChunkBytes}) {
    chunk.refuse(concat("is not ", kChunkBytes, ", the only one of this version"));
  }
  const Field hashes = fields.at("xxh3");
  if (hashes.list().size() != chunks_in(out.file_bytes)) {
    hashes.refuse(concat("has ", hashes.list().size(), " hashes, and ", out.file_bytes,
                         " bytes are ", chunks_in(out.file_bytes), " chunks"));
  }
  for (std::size_t i = 0; i < hashes.list().size(); ++i) {
    out.chunks.push_back(hashes.item(i).hash());
  }
  return out;
}

}  // namespace intarsia::checkpoint
