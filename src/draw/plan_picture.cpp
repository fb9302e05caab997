#include "draw/plan_picture.h"

#include <algorithm>

#include "base/text.h"
#include "draw/panel_drawing.h"

namespace intarsia::draw {
namespace {

constexpr double kGap = 14;  // beside an arrow
constexpr double kTitle = 16;
constexpr double kText = 12;

class Picture {
 public:
  explicit Picture(const PlanReport& report)
      : report_(report),
        plan_(report.plan),
        panels_(make_panels(plan_, Face(plan_.shape)), plan_.shape, Face(plan_.shape),
                kMargin + 4 * kLine) {
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      const StepText text = step_text(i);
      double wide = 60;
      for (const auto& line : text.above) wide = std::max(wide, width_of(line, kText));
      for (const auto& line : text.below) wide = std::max(wide, width_of(line, kText));
      step_widths_.push_back(wide + 2 * kGap);
    }
  }

  std::string draw() {
    draw_head();
    double x = kMargin;
    for (std::size_t i = 0; i < panels_.size(); ++i) {
      if (i > 0) {
        draw_step(i - 1, x);
        x += step_widths_[i - 1];
      }
      panels_.draw(svg_, i, x);
      x += panels_.width();
    }
    double width = std::max(x, head_width()) + kMargin;
    double y = panels_.bottom() + kLine;
    for (const std::string& line : wrapped(foot(), kSmall, width - 2 * kMargin)) {
      svg_.text_from(kMargin, y, line, {.size = kSmall, .color = kGrey});
      y += kLine;
      width = std::max(width, width_of(line, kSmall) + 2 * kMargin);
    }
    return svg_.file(width, y + kMargin / 2, title());
  }

 private:
  std::string title() const {
    return concat(report_.tensor_text(), " on ", plan_.from.mesh(), ": ",
                  plan_.from.placements_text(), " to ", plan_.to.placements_text());
  }

  std::string summary() const {
    const std::string bound =
        report_.has_bound() ? concat(" (lower bound ", bytes_text(report_.in_all.missing), ")")
                            : "";
    return concat(count_text(plan_.collectives(), "collective"), ", a rank receives at most ",
                  bytes_text(report_.in_all.received), bound, ", ", time_text(plan_.seconds),
                  " by ", report_.topology_text(), ", holds at most ",
                  bytes_text(plan_.peak_bytes));
  }

  std::string foot() const {
    std::string text = panels_.legend();
    if (!plan_.steps.empty()) {
      text += " Bytes are what arrives at the rank that receives most.";
    }
    if (plan_.collectives() < plan_.steps.size()) {
      text += " Dashed arrows send nothing.";
    }
    return text;
  }

  double head_width() const {
    return kMargin + std::max(width_of(title(), kTitle), width_of(summary(), kText));
  }

  struct StepText {
    std::vector<std::string> above;
    std::vector<std::string> below;
  };

  StepText step_text(std::size_t i) const {
    const Step& step = plan_.steps[i];
    StepText out;
    out.above = {concat(i + 1, ". ", to_text(step.kind)), concat("along ", step.axes_text())};
    if (step.communicates()) out.below.push_back(bytes_text(report_.steps[i].received));
    out.below.push_back(time_text(step.seconds));
    if (step.chunks > 1) out.below.push_back(concat("in ", step.chunks, " parts"));
    return out;
  }

  void draw_head() {
    svg_.text_from(kMargin, kMargin, title(), {.size = kTitle, .bold = true});
    svg_.text_from(kMargin, kMargin + 1.5 * kLine, summary(), {.size = kText, .color = kGrey});
  }

  void draw_step(std::size_t i, double x) {
    const double wide = step_widths_[i];
    const double y = panels_.middle();
    const StepText text = step_text(i);
    svg_.arrow(x + 6, x + wide - 6, y, !plan_.steps[i].communicates());
    for (std::size_t l = 0; l < text.above.size(); ++l) {
      const double up = kLine * static_cast<double>(text.above.size() - l);
      svg_.text(x + wide / 2, y - up + 2, text.above[l], {.size = kText, .bold = l == 0});
    }
    for (std::size_t l = 0; l < text.below.size(); ++l) {
      svg_.text(x + wide / 2, y + kLine * static_cast<double>(l + 1), text.below[l],
                {.size = kText});
    }
  }

  const PlanReport& report_;
  const Plan& plan_;
  PanelDrawing panels_;
  Svg svg_;
  std::vector<double> step_widths_;
};

}  // namespace

std::string to_svg(const PlanReport& report) { return Picture(report).draw(); }

}  // namespace intarsia::draw
