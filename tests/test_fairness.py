from cloister.fairness import CREDIT, ServiceMeter

MOST = 8


def test_outputs_weigh_twice_inputs():
    meter = ServiceMeter()
    meter.arrive("a")
    meter.charge("a", inputs=10, outputs=3)
    assert meter.served("a") == 16


def test_a_newcomer_starts_a_short_prompt_behind_the_least_served():
    meter = ServiceMeter()
    for tenant in ("a", "b"):
        meter.arrive(tenant)
    meter.charge("a", inputs=1000)
    meter.charge("b", inputs=400)
    meter.arrive("c")
    assert meter.served("c") == meter.served("b") - CREDIT
    meter.charge("c", inputs=CREDIT - 10)
    meter.leave("c")
    meter.arrive("c")
    assert meter.served("c") == meter.served("b") - 10, "who comes again has had no less"


def test_a_tenants_first_tokens_need_not_be_cut_up():
    meter = ServiceMeter()
    for _ in range(2):
        meter.arrive("a")
    assert meter.uncut("a") == CREDIT
    meter.charge("a", inputs=CREDIT - 10, outputs=5)
    meter.arrive("a")
    assert meter.uncut("a") == 10
    meter.charge("a", inputs=1000)
    assert meter.uncut("a") == meter.uncut("b") == 0


def test_leaving_does_not_wipe_a_debt_and_idling_saves_up_little():
    meter = ServiceMeter()
    for tenant in ("greedy", "modest"):
        meter.arrive(tenant)
    meter.charge("greedy", inputs=1000)
    meter.leave("greedy")
    meter.charge("modest", inputs=10)
    meter.arrive("greedy")
    assert meter.served("greedy") == 1000
    meter.leave("modest")
    meter.charge("greedy", inputs=500)
    meter.arrive("modest")
    assert meter.served("modest") == 1500 - CREDIT


def test_all_calls_paid_with_tokens_have_one_share_and_each_its_uncut_prompt():
    meter = ServiceMeter()
    for tenant in ("token-a", "token-b", "keyed"):
        meter.arrive(tenant)
    meter.charge("token-a", inputs=100)
    assert meter.served("token-b") == 100 and meter.served("keyed") <= 0 and meter.active == 2
    assert (meter.uncut("token-a"), meter.uncut("token-b")) == (0, CREDIT)
    meter.leave("token-a")
    assert meter.uncut("token-a") == 0 and meter.served("token-c") == 100 and meter.active == 2
    assert meter.drain(MOST) == {"token-": 100}
    meter.leave("token-b")
    assert meter.active == 1


def test_tenants_that_never_return_are_forgotten():
    meter = ServiceMeter()
    meter.arrive("stays")
    meter.charge("stays", inputs=10**6)
    for number in range(5000):
        meter.arrive(f"t{number}")
        meter.leave(f"t{number}")
    assert len(meter._served) < 200


def test_most_served():
    meter = ServiceMeter()
    for tenant in "abc":
        meter.arrive(tenant)
    for tenant, inputs in (("a", 101), ("b", 505), ("c", 303)):
        meter.charge(tenant, inputs=inputs)
    assert meter.most_served(["a", "b", "c"]) == "b"


def test_what_a_tenant_had_elsewhere_counts_here():
    service, vaults = ServiceMeter(), ServiceMeter()
    for meter in (service, vaults):
        meter.arrive("busy")
    service.arrive("modest")
    vaults.charge("busy", inputs=500)
    service.charge("modest", inputs=100)
    service.merge(vaults.drain(MOST))
    assert service.served("busy") == 500 > service.served("modest")
    vaults.merge(service.drain(MOST))
    assert vaults.served("busy") == 500, "its own charge does not come back to it"
    assert vaults.served("modest") == 0, "who was never here begins where others are"
    assert vaults.drain(MOST) == service.drain(MOST) == {}


def test_a_meter_tells_of_so_many_tenants_at_most_and_keeps_few():
    meter = ServiceMeter()
    for number in range(2 * MOST):
        meter.arrive(str(number))
        meter.charge(str(number), inputs=number + 1)
    assert min(meter.drain(MOST).values()) == MOST + 1
    for number in range(2 * MOST):
        meter.charge(str(number), inputs=2**31)
    assert set(meter.drain(MOST).values()) == {2**31 - 1}
    for number in range(5000):
        meter.arrive(str(number))
        meter.charge(str(number), inputs=1)
    assert len(meter.drain(5000)) == 1024
