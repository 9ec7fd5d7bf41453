// The smallest value that a JSON Schema takes, so that whoever sends a message fills in blanks instead of reading a
// schema first. Only what is required is in it; the words and numbers are blank.

const BLANK = { string: "", integer: 0, number: 0, boolean: false, null: null };
const DEEPEST = 8; // a schema may contain itself

export function sample(schema, root = schema, depth = 0) {
  if (!schema || typeof schema !== "object" || depth > DEEPEST) return null;
  if ("default" in schema) return schema.default;
  if ("const" in schema) return schema.const;
  if (schema.enum) return schema.enum[0];
  if (schema.$ref) return sample(found(schema.$ref, root), root, depth + 1);
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return sample(choices.find(({ type }) => type !== "null") ?? choices[0], root, depth + 1);
  const type = Array.isArray(schema.type) ? schema.type.find((name) => name !== "null") : schema.type;
  if (type === "array") return [];
  if (type in BLANK) return BLANK[type];
  const required = schema.required ?? [];
  return Object.fromEntries(required.map((name) => [name, sample(schema.properties?.[name], root, depth + 1)]));
}

function found(reference, root) {
  return reference.replace(/^#\//, "").split("/").reduce((at, part) => at?.[part.replace(/~1/g, "/").replace(/~0/g, "~")], root);
}
