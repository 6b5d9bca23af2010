// Writes stacks as a gzipped pprof profile, so that a real varve can store any test data.

import { gzipSync } from "node:zlib";
import type { FixtureFrame, FixtureStack } from "./fixture/stacks";

/** Writer of a protobuf message. */
class Message {
  private readonly parts: number[] = [];

  varint(field: number, value: number | bigint): this {
    this.raw(BigInt(field << 3));
    this.raw(BigInt(value));
    return this;
  }

  bytes(field: number, value: Uint8Array | Message): this {
    const content = value instanceof Message ? value.parts : value;
    this.raw(BigInt((field << 3) | 2));
    this.raw(BigInt(content.length));
    for (const byte of content) this.parts.push(byte);
    return this;
  }

  packed(field: number, values: readonly number[]): this {
    const content = new Message();
    for (const value of values) content.raw(BigInt(value));
    return this.bytes(field, content);
  }

  done(): Uint8Array {
    return Uint8Array.from(this.parts);
  }

  private raw(value: bigint): void {
    for (let rest = value; ; rest >>= 7n) {
      if (rest < 0x80n) return void this.parts.push(Number(rest));
      this.parts.push(Number(rest & 0x7fn) | 0x80);
    }
  }
}

/** A pprof file with the stacks as a CPU profile, in nanoseconds. The profile ended at `end_s` (Unix seconds). */
export function pprofOf(stacks: readonly FixtureStack[], end_s: number): Uint8Array {
  const strings = [""];
  const indices = new Map([["", 0]]);
  const text = (value: string): number => {
    const known = indices.get(value);
    if (known !== undefined) return known;
    indices.set(value, strings.length);
    return strings.push(value) - 1;
  };
  const profile = new Message();
  const valueType = (): Message => new Message().varint(1, text("cpu")).varint(2, text("nanoseconds"));
  profile.bytes(1, valueType());
  const locations = new Map<string, number>();
  const mappings = new Map<string, number>();
  const definitions: Array<[field: number, message: Message]> = [];
  const location = (frame: FixtureFrame): number => {
    const known = locations.get(frame.name);
    if (known !== undefined) return known;
    const id = locations.size + 1;
    locations.set(frame.name, id);
    const binary = frame.binary ?? "/bin/made-up";
    let mapping = mappings.get(binary);
    if (mapping === undefined) {
      mapping = mappings.size + 1;
      mappings.set(binary, mapping);
      definitions.push([
        3,
        new Message()
          .varint(1, mapping)
          .varint(2, mapping << 24)
          .varint(3, (mapping + 1) << 24)
          .varint(5, text(binary))
          .varint(7, 1),
      ]);
    }
    definitions.push([
      5,
      new Message()
        .varint(1, id)
        .varint(2, text(frame.name))
        .varint(3, text(frame.name))
        .varint(4, text(frame.file ?? ""))
        .varint(5, frame.line ?? 0),
    ]);
    definitions.push([
      4,
      new Message()
        .varint(1, id)
        .varint(2, mapping)
        .varint(3, (mapping << 24) + id)
        .bytes(4, new Message().varint(1, id).varint(2, frame.line ?? 0)),
    ]);
    return id;
  };
  for (const { frames, value } of stacks) {
    profile.bytes(2, new Message().packed(1, frames.map(location).reverse()).packed(2, [value]));
  }
  for (const [field, message] of definitions) profile.bytes(field, message);
  const period = valueType();
  for (const value of strings) profile.bytes(6, Buffer.from(value, "utf8"));
  profile.varint(9, BigInt(Math.floor(end_s * 1000)) * 1_000_000n).varint(10, 10_000_000_000n);
  return gzipSync(profile.bytes(11, period).varint(12, 1).done());
}
