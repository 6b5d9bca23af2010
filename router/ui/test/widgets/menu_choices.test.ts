import { expect, test } from "vitest";
import { CHOICES_MAX, menuChoices } from "../../src/widgets/menu_choices";

const services = Array.from({ length: CHOICES_MAX + 2 }, (_, i) => ({ label: `Service-${i}` }));

test("a long menu counts its hidden items, and typing finds them", () => {
  expect(menuChoices(services, "")).toEqual({ shown: services.slice(0, CHOICES_MAX), more: 2 });
  const last = services[services.length - 1];
  expect(menuChoices(services, last.label.toLowerCase())).toEqual({ shown: [last], more: 0 });
  expect(menuChoices(services, "none such")).toEqual({ shown: [], more: 0 });
});
