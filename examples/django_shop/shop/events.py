"""What follows from an order. `manage.py mainspring` runs it. Plain functions may use the ORM."""

from mainspring import App, BlockingEvent, Sleep
from shop.models import Order

app = App("shop")


@app.consumer("orders")  # again until it succeeds; a dead letter after five attempts
def bill(event: BlockingEvent[dict]) -> None:
    order = Order.objects.get(id=event.payload["order"])
    order.state = "billed"  # the same when it is done twice
    order.save()
    event.start_run(follow_up, order.customer, id=f"follow-up-{order.id}")


@app.run  # a workflow: after a restart it goes on where it was
async def follow_up(customer: str, perform) -> str:
    await perform(Sleep(hours=24))
    await perform.enqueue(send_mail, customer)
    return customer


@app.task
def send_mail(to: str) -> None:
    print("mail to", to)


@app.query("Shop.Count")
def count(data: dict, ctx) -> int:
    return Order.objects.count()
