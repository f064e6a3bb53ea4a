// What views ask of a state as the API has it.

/** The site of a member: its host's, or what its name says where it has none any more. */
export const siteOf = (state, member) => state.hosts?.[member]?.site ?? member.replace(/-w\d+$/, "");

/** The plans that have been in force, the newest last: epoch, plan, `since` when (null: from the begin), and why. */
export function plansInForce(state) {
  const told = ([epoch, { plan, swap }]) => ({
    epoch: Number(epoch),
    plan,
    since: swap?.active_s ?? null,
    why: swap?.reason ?? "",
  });
  return Object.entries(state.plans ?? {})
    .filter(([, { plan, swap }]) => plan && (!swap || swap.active_s != null))
    .map(told)
    .sort((one, other) => one.epoch - other.epoch);
}

/** The plan in force; undefined where members go by none. */
export const planInForce = state => plansInForce(state).at(-1);

/** An event in words. */
export const inWords = event => `${event.kind} ${event.target}${event.by ? ", by hand" : ""}`;
