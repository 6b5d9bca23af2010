// Choice of a profile type if the URL or the selector does not name one in full.

/** The default type: CPU time if it is stored, otherwise the first; "" if there is none. */
export function defaultType(types: readonly string[]): string {
  return types.find((type) => type.startsWith("process_cpu:cpu:")) ?? types[0] ?? "";
}

/** The type with this full or short name. Throws an error for the user if no type has the name, or several have it. */
export function typeOfMetric(metric: string, types: readonly string[]): string {
  const found = types.filter((type) => type === metric || type.split(":")[0] === metric);
  if (found.length === 1) return found[0];
  // A short name means the type whose sample type equals its period type, as on the server.
  const ofPeriod = found.filter((type) => {
    const [, sampleType, sampleUnit, periodType, periodUnit] = type.split(":");
    return sampleType === periodType && sampleUnit === periodUnit;
  });
  if (ofPeriod.length === 1) return ofPeriod[0];
  if (found.length === 0) throw new Error(`no profile type is called ${metric}: choose one in the menu`);
  throw new Error(`${metric} matches several profile types: choose one in the menu`);
}
