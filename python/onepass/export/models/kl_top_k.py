class ModelNew(nn.Module):
    """KL(teacher || student) of logits and a teacher of which k classes are known, averaged over the rows.

    student are logits [..., C]; log_probs and classes [..., K], K up to 4096, are the teacher's log-probabilities and
    the classes they belong to. All other classes are one more category: with what the teacher's probabilities lack to
    1, and with the sum of the student's. The masses of a class that comes twice add up; one below 0 is padding. There
    is no gradient to the teacher. The loss has the type of both inputs, under autocast float32.
    """

    def forward(self, student, log_probs, classes):
        module = _onepass(student)
        loss = module.kl_div_top_k(student, log_probs.detach(), classes, reduction="valid")
        dtype = torch.promote_types(student.dtype, log_probs.dtype)
        return loss if module.route.autocasts(student) else loss.to(dtype)
